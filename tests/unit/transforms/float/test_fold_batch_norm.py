"""fold_batch_norm and decompose_batch_norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import BatchNormalization, Conv, ConvTranspose, Gemm, Relu
from quantglow.transforms.float import decompose_batch_norm, fold_batch_norm
from tests.support.builder import Builder, ops_of, rewritten


def producer(b: Builder, kind: type[Node], /, **fields: Any) -> Node:
    if kind is Gemm:
        return b.make(Gemm, x=b.input(2, 3), w=b.drawn(3, 4), **fields)
    return b.make(kind, x=b.input(1, 3, 3, 2), w=b.drawn(2, 2, 2, 4), **fields)


def batch_norm(b: Builder, x: Node) -> Node:
    parameters = {k: b.drawn(4, low=0.5, high=2.0) for k in ("gamma", "beta", "mean", "var")}
    return b.make(BatchNormalization, x=x, **parameters)


@pytest.mark.parametrize("kind", [Conv, ConvTranspose, Gemm])
@pytest.mark.parametrize("biased", [True, False])
def test_batch_norm_goes_into_weights_and_bias(kind: type[Node], biased: bool) -> None:
    b = Builder()
    x = producer(b, kind, b=b.drawn(4) if biased else None)
    assert ops_of(rewritten(fold_batch_norm, b, [batch_norm(b, x)])) == [kind.__name__]


def test_the_folded_node_takes_the_last_name() -> None:
    b = Builder()
    y = batch_norm(b, producer(b, Conv))
    assert rewritten(fold_batch_norm, b, [y]).outputs[0][1].name == y.name


def test_two_batch_norms_fold_one_after_the_other() -> None:
    b = Builder()
    y = batch_norm(b, batch_norm(b, producer(b, Conv)))
    assert ops_of(rewritten(fold_batch_norm, b, [y])) == ["Conv"]


def test_weights_shared_by_two_convolutions_stay_apart() -> None:
    b = Builder()
    first = producer(b, Conv)
    second = replace(first, name="second")
    after = rewritten(fold_batch_norm, b, [batch_norm(b, first), batch_norm(b, second)])
    assert ops_of(after) == ["Conv", "Conv"]


def test_a_producer_with_another_reader_is_refused() -> None:
    b = Builder()
    x = producer(b, Conv)
    after = rewritten(fold_batch_norm, b, [batch_norm(b, x), b.make(Relu, x=x)])
    assert "BatchNormalization" in ops_of(after)


def test_a_producer_with_a_fused_activation_is_refused() -> None:
    b = Builder()
    y = batch_norm(b, producer(b, Conv, low=0.0))
    assert ops_of(rewritten(fold_batch_norm, b, [y])) == ["Conv", "BatchNormalization"]


def test_a_producer_with_a_residual_is_refused() -> None:
    b = Builder()
    y = batch_norm(b, producer(b, Conv, residual=b.input(1, 2, 2, 4)))
    assert ops_of(rewritten(fold_batch_norm, b, [y])) == ["Conv", "BatchNormalization"]


def test_computed_parameters_are_refused() -> None:
    b = Builder()
    gamma = b.input(4)
    remaining = {k: b.drawn(4, low=0.5, high=2.0) for k in ("beta", "mean", "var")}
    y = b.make(BatchNormalization, x=producer(b, Conv), gamma=gamma, **remaining)
    assert ops_of(rewritten(fold_batch_norm, b, [y])) == ["Conv", "BatchNormalization"]


def test_remaining_batch_norms_become_a_scale_and_a_shift() -> None:
    b = Builder()
    y = batch_norm(b, b.input(1, 2, 2, 4))
    assert ops_of(rewritten(decompose_batch_norm, b, [y])) == ["Mul", "Add"]
