"""Element-wise operators behind moved elements of a layer become a part of the layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Add, Clip, Gemm, Mul, Neg, Relu, Reshape, Sub, Transpose
from quantglow.transforms.float import optimize, raise_elements
from tests.support.builder import Builder, ops_of, rewritten

FUNCTIONS: dict[str, Callable[[Builder, Node], Node]] = {
    "scale": lambda b, x: b.make(Mul, x=x, y=b.drawn(1)),
    "scale with axes": lambda b, x: b.make(Mul, x=x, y=b.drawn(1, 1, 1, 1)),
    "shift": lambda b, x: b.make(Add, x=x, y=b.drawn()),
    "shift less x": lambda b, x: b.make(Sub, x=b.drawn(1), y=x),
    "Relu": lambda b, x: b.make(Relu, x=x),
    "Clip": lambda b, x: b.make(Clip, x=x, low=-1.0, high=0.5),
    "Neg": lambda b, x: b.make(Neg, x=x),
}


def turned_keys(b: Builder) -> tuple[Node, Node, Node]:
    """Rows of a product as keys of attention, with channels last: a product, and its moves."""
    product = b.make(Gemm, x=b.input(6, 4), w=b.drawn(4, 8), b=b.drawn(8))
    split = b.make(Reshape, x=product, shape=(2, 3, 2, 4))
    return product, split, b.make(Transpose, x=split, perm=(0, 2, 3, 1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_stand_behind_the_layer(name: str) -> None:
    b = Builder()
    _, split, turned = turned_keys(b)
    actual = rewritten(raise_elements, b, [FUNCTIONS[name](b, turned)])
    assert ops_of(actual)[0] == "Gemm"
    assert ops_of(actual)[2:] == ["Reshape", "Transpose"]
    assert not {split.name, turned.name} & actual.names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_become_a_part_of_the_layer(name: str) -> None:
    b = Builder()
    _, _, turned = turned_keys(b)
    actual = rewritten(optimize, b, [FUNCTIONS[name](b, turned)])
    assert sorted(ops_of(actual)) == ["Gemm", "Reshape", "Transpose"]


@pytest.mark.parametrize("case", ["other readers", "a row", "a larger result", "no layer"])
def test_others_stay_behind_moved_elements(case: str) -> None:
    b = Builder()
    _, split, _ = turned_keys(b)
    x = b.make(Reshape, x=b.input(6, 8), shape=(2, 3, 2, 4)) if case == "no layer" else split
    y = b.drawn(4) if case == "a row" else b.drawn(*(1,) * (5 if case == "a larger result" else 1))
    outputs = [b.make(Mul, x=x, y=y), *([split] if case == "other readers" else [])]
    assert ops_of(rewritten(raise_elements, b, outputs)).index("Mul") > 0
    assert ops_of(rewritten(raise_elements, b, outputs))[0] in ("Gemm", "Reshape")
