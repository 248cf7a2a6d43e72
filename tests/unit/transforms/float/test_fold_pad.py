"""Pads go into the windows behind them; pools and averages have one form."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import AveragePool, Conv, MaxPool, Pad, ReduceMean, Relu
from quantglow.transforms.float import canonicalize_pool, fold_pad
from tests.support.builder import Builder, ops_of, rewritten


def padded(b: Builder, x: Node, value: float = 0.0) -> Node:
    return b.make(Pad, x=x, before=(0, 1, 0, 0), after=(0, 0, 1, 0), value=value)


def pool(b: Builder, kind: type[Node], x: Node, **fields: Any) -> Node:
    return b.make(kind, x=x, kernel=(2, 2), **fields)


def test_a_zero_pad_goes_into_a_convolution() -> None:
    b = Builder()
    x = padded(b, padded(b, b.input(1, 3, 3, 2)))
    y = b.make(Conv, x=x, w=b.drawn(2, 2, 2, 1), pads=(0, 1, 0, 0))
    assert ops_of(rewritten(fold_pad, b, [y])) == ["Conv"]


def test_an_average_pool_counts_the_folded_pad() -> None:
    b = Builder()
    y = pool(b, AveragePool, padded(b, b.input(1, 3, 3, 2)))
    assert ops_of(rewritten(fold_pad, b, [y])) == ["AveragePool"]


@pytest.mark.parametrize("activation", [True, False])
def test_a_max_pool_takes_zeros_only_behind_an_activation(activation: bool) -> None:
    b = Builder()
    x: Node = b.input(1, 3, 3, 2)
    x = b.make(Relu, x=x) if activation else x
    after = rewritten(fold_pad, b, [pool(b, MaxPool, padded(b, x))])
    assert ("Pad" in ops_of(after)) is not activation


def test_a_max_pool_takes_minus_infinity() -> None:
    b = Builder()
    y = pool(b, MaxPool, padded(b, b.input(1, 3, 3, 2), -math.inf))
    assert ops_of(rewritten(fold_pad, b, [y])) == ["MaxPool"]


def refused_pads(b: Builder) -> list[Node]:
    x = b.input(1, 3, 3, 2)
    channels = b.make(Pad, x=x, before=(0, 0, 0, 1), after=(0, 0, 0, 0))
    wide = b.make(Pad, x=x, before=(0, 2, 0, 0), after=(0, 0, 0, 0))
    return [
        b.make(Conv, x=channels, w=b.drawn(1, 1, 3, 1)),
        b.make(Conv, x=padded(b, x, 1.0), w=b.drawn(1, 1, 2, 1)),
        pool(b, AveragePool, padded(b, x), pads=(1, 0, 0, 0)),
        pool(b, AveragePool, padded(b, x), ceil_mode=True, strides=(2, 2)),
        pool(b, AveragePool, wide),
    ]


@pytest.mark.parametrize("index", range(5))
def test_a_pad_that_means_something_else_stays(index: int) -> None:
    b = Builder()
    assert "Pad" in ops_of(rewritten(fold_pad, b, [refused_pads(b)[index]]))


def test_global_averages_have_one_form() -> None:
    b = Builder()
    x = b.input(2, 3, 4, 2)
    whole = b.make(AveragePool, x=x, kernel=(3, 4))
    flat = b.make(ReduceMean, x=x, axes=(1, 2), keepdims=False)
    after = rewritten(canonicalize_pool, b, [whole, flat])
    assert ops_of(after) == ["ReduceMean", "ReduceMean", "Reshape"]


def test_a_padded_or_partial_average_is_not_global() -> None:
    b = Builder()
    x = b.input(2, 3, 4, 2)
    whole = b.make(AveragePool, x=x, kernel=(3, 4), pads=(1, 0, 0, 0))
    after = rewritten(canonicalize_pool, b, [whole, b.make(AveragePool, x=x, kernel=(3, 3))])
    assert ops_of(after) == ["AveragePool", "AveragePool"]
