"""fuse_activation and fuse_residual."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    Add,
    Clip,
    Conv,
    ConvTranspose,
    Gemm,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Max,
    Min,
    Mul,
    Relu,
    Sigmoid,
    Sub,
)
from quantglow.ir.ops.activation import Activation
from quantglow.ir.ops.work import FEWEST_PRODUCTS
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.float import fuse_activation, fuse_residual
from quantglow.transforms.float.fusion import fuse_float_activation
from tests.support.builder import Builder, ops_of, rewritten

STEP = QuantParams.per_tensor(0.5, 0)


def conv(b: Builder, /, **fields: Any) -> Node:
    return b.make(Conv, x=b.input(1, 3, 3, 2), w=b.drawn(2, 2, 2, 4), **fields)


def producers(b: Builder, kind: type[Node]) -> Node:
    if kind is Gemm:
        return b.make(Gemm, x=b.input(2, 3), w=b.drawn(3, 4))
    if kind in (Conv, ConvTranspose):
        return b.make(kind, x=b.input(1, 3, 3, 2), w=b.drawn(2, 2, 2, 4))
    return b.make(kind, x=b.input(2, 3), y=b.input(3))


@pytest.mark.parametrize("kind", [Conv, ConvTranspose, Gemm, Add, Sub, Mul, Max, Min])
def test_an_activation_becomes_bounds(kind: type[Node]) -> None:
    b = Builder()
    y = b.make(Clip, x=b.make(Relu, x=producers(b, kind)), low=-1.0, high=0.5)
    after = rewritten(fuse_activation, b, [y])
    node = after.outputs[0][1]
    assert (node.op, node.name, node.low, node.high) == (kind.__name__, y.name, 0.0, 0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Conv, ConvTranspose, Gemm])
def test_a_cheap_function_goes_into_the_contraction(kind: type[Node]) -> None:
    b = Builder()
    y = b.make(HardSwish, x=producers(b, kind))
    scaled = b.make(Add, x=b.make(Mul, x=y, y=b.constant(1.5)), y=b.constant(-0.25))
    last = b.make(Relu, x=scaled)
    node: Any = rewritten(fuse_float_activation, b, [last]).outputs[0][1]
    assert (node.op, node.name, node.low) == (kind.__name__, last.name, 0.0)
    assert node.activation == Activation("HardSwish", (), 1.5, -0.25)


@pytest.mark.parametrize("kind", [Add, Mul, Max])
def test_a_cheap_function_behind_other_operators_stays(kind: type[Node]) -> None:
    b = Builder()
    y = b.make(HardSwish, x=producers(b, kind))
    assert ops_of(rewritten(fuse_float_activation, b, [y])) == [kind.__name__, "HardSwish"]


def test_a_cheap_function_behind_bounds_stays() -> None:
    b = Builder()
    y = b.make(HardSigmoid, x=conv(b, low=0.0))
    assert ops_of(rewritten(fuse_float_activation, b, [y])) == ["Conv", "HardSigmoid"]


def test_numbers_beyond_float32_stay() -> None:
    b = Builder()
    y = b.make(Mul, x=b.make(LeakyRelu, x=conv(b), alpha=2.0), y=b.constant(3e38))
    z = b.make(Mul, x=y, y=b.constant(3e38))
    assert ops_of(rewritten(fuse_float_activation, b, [z])) == ["Conv", "Mul"]


def test_factors_for_each_channel_stay() -> None:
    b = Builder()
    y = b.make(Mul, x=b.make(HardSwish, x=conv(b)), y=b.drawn(4))
    assert ops_of(rewritten(fuse_float_activation, b, [y])) == ["Conv", "Mul"]


def of_products(b: Builder, kind: str, products: int) -> Node:
    """A contraction whose results are sums of so many products."""
    if kind == "Gemm":
        return b.make(Gemm, x=b.input(2, products), w=b.drawn(products, 4))
    if kind == "ConvTranspose":
        x, w = b.input(1, 3, 3, products), b.drawn(2, 2, products, 4)
        return b.make(ConvTranspose, x=x, w=w, strides=(2, 2))
    if kind == "depthwise":
        x, w = b.input(1, 3, products, 4), b.drawn(1, products, 1, 4)
        return b.make(Conv, x=x, w=w, group=4)
    groups = 2 if kind == "groups" else 1
    x, w = b.input(1, 3, 3, groups * products), b.drawn(1, 1, products, 4)
    return b.make(Conv, x=x, w=w, group=groups)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["Gemm", "Conv", "ConvTranspose", "depthwise", "groups"])
def test_sums_of_few_products_keep_cheap_functions_apart(kind: str, fused: bool) -> None:
    b = Builder()
    producer = of_products(b, kind, FEWEST_PRODUCTS - (not fused))
    y = b.make(LeakyRelu, x=producer, alpha=0.1)
    graph = rewritten(fuse_activation, b, [y])
    assert ops_of(graph) == [producer.op] + ["LeakyRelu"] * (not fused)
    assert ops_of(rewritten(fuse_float_activation, b, [y])) == [producer.op]


def test_a_factor_behind_a_rounding_stays() -> None:
    out = ElementType(DType.I8, STEP)
    x = Input(name="x", tensor=TensorType(DType.I8, (1, 2, 2, 3), STEP))
    w = Constant(name="w", value=np.ones((1, 1, 3, 2), np.int8), element=out)
    swish = Conv(name="conv", x=x, w=w, activation=Activation("HardSwish"), out=out)
    two = Constant(name="two", value=np.array(4, np.int8), element=out)
    graph = Graph((x,), (("y", Mul(name="y", x=swish, y=two, out=out)),))
    for step in (fuse_activation, fuse_float_activation):
        assert ops_of(step(graph)) == ["Conv", "Mul"]


def test_an_activation_on_a_shared_value_stays() -> None:
    b = Builder()
    x = conv(b)
    after = rewritten(fuse_activation, b, [b.make(Relu, x=x), b.make(Sigmoid, x=x)])
    assert ops_of(after) == ["Conv", "Relu", "Sigmoid"]


def test_an_activation_on_a_graph_output_stays() -> None:
    b = Builder()
    x = conv(b)
    assert ops_of(rewritten(fuse_activation, b, [x, b.make(Relu, x=x)])) == ["Conv", "Relu"]


def test_an_activation_without_producer_stays() -> None:
    b = Builder()
    y = b.make(Relu, x=b.make(Sigmoid, x=b.input(3)))
    assert ops_of(rewritten(fuse_activation, b, [y])) == ["Sigmoid", "Relu"]


@pytest.mark.parametrize("swap", [False, True])
def test_a_residual_add_goes_into_the_convolution(swap: bool) -> None:
    b = Builder()
    operands = [b.input(1, 2, 2, 4), conv(b)]
    x, y = reversed(operands) if swap else operands
    total = b.make(Add, x=x, y=y, low=0.0, high=3.0)
    after = rewritten(fuse_residual, b, [total])
    node = after.outputs[0][1]
    assert (node.op, node.name, node.high) == ("Conv", total.name, 3.0)  # type: ignore[attr-defined]


def test_the_last_of_two_convolutions_takes_the_other() -> None:
    b = Builder()
    first, last = conv(b), conv(b)
    after = rewritten(fuse_residual, b, [b.make(Add, x=first, y=last)])
    assert after.outputs[0][1].residual.name == first.name  # type: ignore[attr-defined]


def test_a_broadcast_add_is_refused() -> None:
    b = Builder()
    y = b.make(Add, x=conv(b), y=b.input(1, 1, 1, 4))
    assert ops_of(rewritten(fuse_residual, b, [y])) == ["Conv", "Add"]


def test_an_add_that_widens_the_convolution_is_refused() -> None:
    b = Builder()
    y = b.make(Add, x=conv(b), y=b.input(5, 2, 2, 4))
    assert ops_of(rewritten(fuse_residual, b, [y])) == ["Conv", "Add"]


@pytest.mark.parametrize("bounds", [{"low": 0.0}, {"high": 1.0}])
def test_a_convolution_with_bounds_is_refused(bounds: dict[str, float]) -> None:
    b = Builder()
    y = b.make(Add, x=conv(b, **bounds), y=b.input(1, 2, 2, 4))
    assert ops_of(rewritten(fuse_residual, b, [y])) == ["Conv", "Add"]


def test_a_constant_is_no_residual() -> None:
    b = Builder()
    y = b.make(Add, x=conv(b), y=b.drawn(1, 2, 2, 4))
    assert ops_of(rewritten(fuse_residual, b, [y])) == ["Conv", "Add"]


def test_a_convolution_with_a_residual_is_refused() -> None:
    b = Builder()
    x = conv(b, residual=b.input(1, 2, 2, 4))
    after = rewritten(fuse_residual, b, [b.make(Add, x=x, y=b.input(1, 2, 2, 4))])
    assert ops_of(after) == ["Conv", "Add"]


def test_a_convolution_added_to_itself_is_refused() -> None:
    b = Builder()
    x = conv(b)
    after = rewritten(fuse_residual, b, [b.make(Add, x=x, y=x, high=math.inf)])
    assert ops_of(after) == ["Conv", "Add"]


def test_a_convolution_with_another_reader_is_refused() -> None:
    b = Builder()
    x = conv(b)
    y = b.make(Add, x=x, y=b.input(1, 2, 2, 4))
    assert ops_of(rewritten(fuse_residual, b, [y, b.make(Relu, x=x)])).count("Add") == 1
