"""Activation functions recognised in their spellings, and not beyond."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    Add,
    Clip,
    Div,
    Erf,
    HardSigmoid,
    Max,
    Min,
    Mul,
    Pow,
    Reciprocal,
    ReduceMean,
    Relu,
    Sigmoid,
    Sqrt,
    Sub,
    Tanh,
)
from quantglow.transforms.float import RECOGNIZERS, factor_gate, merge_clips
from quantglow.transforms.rewrite import repeat
from tests.support.builder import Builder, ops_of, rewritten

recognise = repeat("recognise", *RECOGNIZERS)

Spelling = Callable[[Builder, Node], Node]


def mul(b: Builder, x: Node, y: Node | float) -> Node:
    return b.make(Mul, x=x, y=y if isinstance(y, Node) else b.constant(y))


def add(b: Builder, x: Node, y: Node | float) -> Node:
    return b.make(Add, x=x, y=y if isinstance(y, Node) else b.constant(y))


def div(b: Builder, x: Node, y: float) -> Node:
    return b.make(Div, x=x, y=b.constant(y))


def relu6(b: Builder, x: Node) -> Node:
    return b.make(Clip, x=add(b, x, 3.0), low=0.0, high=6.0)


def min_relu(b: Builder, x: Node) -> Node:
    return b.make(Min, x=b.make(Relu, x=add(b, x, 3.0)), y=b.constant(6.0))


def min_max(b: Builder, x: Node) -> Node:
    inner = b.make(Max, x=b.constant(0.0), y=add(b, x, 3.0))
    return b.make(Min, x=b.constant([[6.0]]), y=inner)


def erf_gate(b: Builder, x: Node) -> Node:
    return add(b, b.make(Erf, x=div(b, x, math.sqrt(2))), 1.0)


def tanh_gate(b: Builder, inner: Node) -> Node:
    return add(b, b.make(Tanh, x=mul(b, inner, math.sqrt(2 / math.pi))), 1.0)


def cube(b: Builder, x: Node) -> Node:
    return b.make(Pow, x=x, y=b.constant(3.0))


SPELLINGS: list[tuple[str, Spelling]] = [
    ("HardSigmoid", lambda b, x: div(b, relu6(b, x), 6.0)),
    ("HardSigmoid", lambda b, x: mul(b, min_relu(b, x), 1 / 6)),
    ("HardSigmoid", lambda b, x: div(b, min_max(b, x), 6.0)),
    ("HardSwish", lambda b, x: mul(b, x, div(b, relu6(b, x), 6.0))),
    ("HardSwish", lambda b, x: div(b, mul(b, x, relu6(b, x)), 6.0)),
    ("HardSwish", lambda b, x: mul(b, div(b, x, 6.0), min_relu(b, x))),
    ("HardSwish", lambda b, x: mul(b, b.make(HardSigmoid, x=x, alpha=1 / 6, beta=0.5), x)),
    ("Swish", lambda b, x: mul(b, x, b.make(Sigmoid, x=x))),
    ("Swish", lambda b, x: mul(b, b.make(Sigmoid, x=x), x)),
    ("Swish", lambda b, x: mul(b, x, b.make(Sigmoid, x=mul(b, x, 1.702)))),
    ("Gelu", lambda b, x: mul(b, mul(b, x, 0.5), erf_gate(b, x))),
    ("Gelu", lambda b, x: mul(b, mul(b, x, erf_gate(b, x)), 0.5)),
    ("Gelu", lambda b, x: mul(b, x, mul(b, erf_gate(b, x), 0.5))),
    (
        "Gelu",
        lambda b, x: mul(b, mul(b, x, 0.5), tanh_gate(b, add(b, x, mul(b, cube(b, x), 0.044715)))),
    ),
    (
        "Gelu",
        lambda b, x: mul(
            b,
            mul(b, x, 0.5),
            tanh_gate(b, mul(b, x, add(b, mul(b, mul(b, x, x), 0.044715), 1.0))),
        ),
    ),
]


@pytest.mark.parametrize(("op", "spelling"), SPELLINGS)
def test_a_spelling_becomes_one_operator(op: str, spelling: Spelling) -> None:
    b = Builder()
    assert ops_of(rewritten(recognise, b, [spelling(b, b.input(3, 50))])) == [op]


def centered(b: Builder, x: Node, axis: int = 1) -> Node:
    return b.make(Sub, x=x, y=b.make(ReduceMean, x=x, axes=(axis,)))


def root(b: Builder, squares: Node, axis: int = 1) -> Node:
    variance = b.make(ReduceMean, x=squares, axes=(axis,))
    return b.make(Sqrt, x=add(b, variance, 1e-3))


def normalized(b: Builder, x: Node) -> Node:
    d = centered(b, x)
    return b.make(Div, x=d, y=root(b, b.make(Pow, x=d, y=b.constant(2.0))))


def normalized_by_reciprocal(b: Builder, x: Node) -> Node:
    d = centered(b, x)
    return mul(b, d, b.make(Reciprocal, x=root(b, mul(b, d, d))))


SPELLINGS += [
    ("LayerNormalization", normalized),
    ("LayerNormalization", normalized_by_reciprocal),
    ("LayerNormalization", lambda b, x: mul(b, b.drawn(50), normalized(b, x))),
    ("LayerNormalization", lambda b, x: add(b, normalized(b, x), b.drawn(1, 50))),
    (
        "LayerNormalization",
        lambda b, x: add(b, mul(b, normalized(b, x), b.drawn(50)), b.drawn(50)),
    ),
]


NEAR_MISSES: list[Spelling] = [
    lambda b, x: mul(b, b.input(3, 4), b.make(Sigmoid, x=x)),
    lambda b, x: mul(b, b.input(3, 4), relu6(b, x)),
    lambda b, x: mul(b, x, b.make(HardSigmoid, x=x, alpha=0.2, beta=0.5)),
    lambda b, x: div(b, mul(b, x, relu6(b, x)), 5.0),
    lambda b, x: mul(b, x, mul(b, add(b, b.make(Erf, x=x), 1.0), 0.5)),
    lambda b, x: mul(b, x, erf_gate(b, x)),
    lambda b, x: mul(b, x, b.make(Sigmoid, x=mul(b, x, x))),
    lambda b, x: mul(b, mul(b, x, 0.5), tanh_gate(b, add(b, x, mul(b, cube(b, x), 0.05)))),
]


@pytest.mark.parametrize("spelling", NEAR_MISSES)
def test_a_near_miss_stays(spelling: Spelling) -> None:
    b = Builder()
    after = rewritten(recognise, b, [spelling(b, b.input(3, 4))])
    assert not {"HardSwish", "Swish", "Gelu"} & set(ops_of(after))


NOT_NORMALIZED: list[Spelling] = [
    lambda b, x: b.make(Div, x=centered(b, x, 0), y=root(b, mul(b, x, x))),
    lambda b, x: b.make(Div, x=centered(b, x), y=root(b, mul(b, centered(b, x), x))),
    lambda b, x: b.make(Div, x=centered(b, x), y=root(b, mul(b, x, x))),
]


@pytest.mark.parametrize("spelling", NOT_NORMALIZED)
def test_near_misses_of_a_normalization_stay(spelling: Spelling) -> None:
    b = Builder()
    after = rewritten(recognise, b, [spelling(b, b.input(3, 4))])
    assert "LayerNormalization" not in ops_of(after)


def test_a_normalization_along_another_axis_stays() -> None:
    b = Builder()
    d = centered(b, b.input(3, 4), 0)
    quotient = b.make(Div, x=d, y=root(b, mul(b, d, d), 0))
    assert "LayerNormalization" not in ops_of(rewritten(recognise, b, [quotient]))


def test_a_second_factor_stays_behind_the_normalization() -> None:
    b = Builder()
    scaled = mul(b, add(b, normalized(b, b.input(3, 4)), b.drawn(4)), b.drawn(4))
    assert ops_of(rewritten(recognise, b, [scaled])) == ["LayerNormalization", "Mul"]


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ((0.0, 6.0), (1.0, 9.0), (1.0, 6.0)),
        ((-1.0, 1.0), (2.0, 3.0), (2.0, 2.0)),
        ((4.0, 5.0), (2.0, 3.0), (3.0, 3.0)),
        ((3.0, -3.0), (-9.0, 9.0), (3.0, -3.0)),
    ],
)
def test_clips_merge(
    inner: tuple[float, float], outer: tuple[float, float], expected: tuple[float, float]
) -> None:
    b = Builder()
    x = b.make(Clip, x=b.input(3, 9), low=inner[0], high=inner[1])
    after = rewritten(merge_clips, b, [b.make(Clip, x=x, low=outer[0], high=outer[1])])
    node = after.outputs[0][1]
    assert (node.low, node.high) == expected  # type: ignore[attr-defined]


def test_max_with_zero_is_relu() -> None:
    b = Builder()
    y = b.make(Max, x=b.input(4), y=b.constant(0.0))
    assert ops_of(rewritten(merge_clips, b, [y])) == ["Relu"]


def test_max_with_a_vector_stays() -> None:
    b = Builder()
    y = b.make(Max, x=b.input(4), y=b.drawn(4))
    assert ops_of(rewritten(merge_clips, b, [y])) == ["Max"]


def test_a_scalar_that_widens_the_result_stays() -> None:
    b = Builder()
    y = b.make(Max, x=b.input(4), y=b.drawn(1, 1))
    assert ops_of(rewritten(merge_clips, b, [y])) == ["Max"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_value_and_its_gated_self_are_one_product(swapped: bool) -> None:
    b = Builder()
    x, gate = b.input(2, 4, 4, 3), b.input(2, 1, 1, 3)
    product = mul(b, gate, x) if swapped else mul(b, x, gate)
    y = add(b, product, x) if swapped else add(b, x, product)
    assert ops_of(rewritten(factor_gate, b, [y])) == ["Add", "Mul"]
    (product_type,) = [n.type.shape for n in rewritten(factor_gate, b, [y]).nodes if n.op == "Add"]
    assert product_type == gate.type.shape


def test_a_gate_as_large_as_its_value_stays_apart() -> None:
    b = Builder()
    x, gate = b.input(2, 3), b.input(2, 3)
    assert ops_of(rewritten(factor_gate, b, [add(b, x, mul(b, x, gate))])) == ["Mul", "Add"]


def test_a_gated_value_that_others_read_stays() -> None:
    b = Builder()
    x, gate = b.input(2, 3), b.input(1, 3)
    product = mul(b, x, gate)
    after = rewritten(factor_gate, b, [add(b, x, product), product])
    assert ops_of(after) == ["Mul", "Add"]
