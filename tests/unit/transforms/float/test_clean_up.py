"""Constants, common subexpressions, identities, and passes that are repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    Add,
    AveragePool,
    Clip,
    Concat,
    Constant,
    Conv,
    Dequantize,
    Expand,
    MaxPool,
    Mul,
    Pad,
    Quantize,
    ReduceMax,
    ReduceMean,
    Relu,
    Reshape,
    Resize,
    Tanh,
)
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.errors import QuantglowError
from quantglow.transforms.float import (
    eliminate_common_subexpressions,
    eliminate_identity,
    fold_constants,
    optimize,
)
from quantglow.transforms.float.elimination import EliminateCommonSubexpressions
from quantglow.transforms.rewrite import repeat, rewrite_pass
from tests.support.builder import Builder, assert_same_function, cut, ops_of, rewritten

INT8 = ElementType(DType.I8, QuantParams.per_tensor(0.05, 3))


# fold_constants


def test_operators_on_constants_are_computed() -> None:
    b = Builder()
    y = b.make(Tanh, x=b.make(Add, x=b.drawn(3), y=b.drawn(2, 1)))
    assert ops_of(rewritten(fold_constants, b, [y])) == []


def test_folding_keeps_the_quantization() -> None:
    b = Builder()
    y = b.make(Quantize, x=b.drawn(3), out=INT8)
    assert rewritten(fold_constants, b, [y]).outputs[0][1].type == y.type


@pytest.mark.parametrize("shape", [(), (1,), (2, 0)])
def test_folding_keeps_small_shapes(shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.make(Relu, x=b.drawn(*shape))
    assert rewritten(fold_constants, b, [y]).outputs[0][1].type.shape == shape


def test_a_huge_expansion_stays() -> None:
    b = Builder()
    before = b.graph(b.make(Expand, x=b.drawn(1), shape=(1 << 20,)))
    assert fold_constants(before) is before


# eliminate_common_subexpressions


def test_equal_operators_are_one() -> None:
    b = Builder()
    x = b.input(3)
    y = b.make(Add, x=b.make(Tanh, x=x), y=b.make(Tanh, x=x))
    assert ops_of(rewritten(eliminate_common_subexpressions, b, [y])) == ["Tanh", "Add"]


def test_other_attributes_keep_operators_apart() -> None:
    b = Builder()
    x = b.input(3)
    low = b.make(Clip, x=x, low=0.0)
    y = b.make(Add, x=low, y=b.make(Clip, x=x, low=0.5))
    assert ops_of(rewritten(eliminate_common_subexpressions, b, [y])).count("Clip") == 2


def test_bias_and_residual_are_not_mistaken_for_each_other() -> None:
    b = Builder()
    x, w, c = b.input(1, 1, 1, 2), b.drawn(1, 1, 2, 2), b.input(2)
    one = b.make(Conv, x=x, w=w, b=c)
    other = b.make(Conv, x=x, w=w, residual=b.reshape(c, 1, 1, 1, 2))
    after = rewritten(EliminateCommonSubexpressions(), b, [one, other])
    assert ops_of(after).count("Conv") == 2


def test_equal_constants_are_one() -> None:
    b = Builder()
    value = np.arange(40.0)
    y = b.make(Add, x=b.make(Mul, x=b.input(40), y=b.constant(value)), y=b.constant(value))
    after = rewritten(eliminate_common_subexpressions, b, [y])
    assert sum(isinstance(node, Constant) for node in after.nodes) == 1


def test_constants_that_differ_late_stay_apart() -> None:
    b = Builder()
    value = np.zeros(40)
    value[-1] = 1
    y = b.make(Add, x=b.make(Mul, x=b.input(40), y=b.constant(value)), y=b.constant(value * 2))
    after = rewritten(eliminate_common_subexpressions, b, [y])
    assert sum(isinstance(node, Constant) for node in after.nodes) == 2


def test_negative_zero_is_another_constant() -> None:
    b = Builder()
    y = b.make(Add, x=b.make(Mul, x=b.input(1), y=b.constant([0.0])), y=b.constant([-0.0]))
    after = eliminate_common_subexpressions(b.graph(y))
    assert sum(isinstance(node, Constant) for node in after.nodes) == 2


# eliminate_identity

IDENTITIES: dict[str, Any] = {
    "reshape": lambda b, x: b.reshape(x, *x.type.shape),
    "transpose": lambda b, x: b.transpose(x, 0, 1, 2, 3),
    "pad": lambda b, x: b.make(Pad, x=x, before=(0,) * 4, after=(0,) * 4),
    "slice": lambda b, x: cut(b, x, 0, x.type.shape[1]),
    "concat": lambda b, x: b.make(Concat, parts=(x,), axis=0),
    "clip": lambda b, x: b.make(Clip, x=x),
    "average-pool": lambda b, x: b.make(AveragePool, x=x, kernel=(1, 1)),
    "max-pool": lambda b, x: b.make(MaxPool, x=x, kernel=(1, 1)),
    "expand": lambda b, x: b.make(Expand, x=x, shape=x.type.shape),
    "resize": lambda b, x: b.make(Resize, x=x, sizes=x.type.shape[1:3], scales=(1.0, 1.0)),
    "reduce": lambda b, x: b.make(ReduceMean, x=x, axes=(0,)),
    "add": lambda b, x: b.make(Add, x=b.constant([0.0]), y=x),
    "mul": lambda b, x: b.make(Mul, x=x, y=b.constant(1.0)),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_an_identity_goes(kind: str) -> None:
    b = Builder()
    y = b.make(Tanh, x=IDENTITIES[kind](b, b.input(1, 3, 4, 2)))
    assert ops_of(rewritten(eliminate_identity, b, [y])) == ["Tanh"]


CHANGES: dict[str, Any] = {
    "reversed slice": lambda b, x: cut(b, x, 2, 3, step=-1),
    "strided pool": lambda b, x: b.make(MaxPool, x=x, kernel=(1, 1), strides=(2, 2)),
    "clip": lambda b, x: b.make(Clip, x=x, low=-0.1),
    "widening add": lambda b, x: b.make(Add, x=x, y=b.constant([[[[[0.0]]]]])),
    "bounded add": lambda b, x: b.make(Add, x=x, y=b.constant(0.0), low=0.0),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_operators_that_change_the_value_stay(kind: str) -> None:
    b = Builder()
    before = b.graph(CHANGES[kind](b, b.input(1, 3, 4, 2)))
    assert eliminate_identity(before) is before


# the machinery


def test_passes_that_undo_each_other_are_an_error_while_verifying() -> None:
    def flip(node: Node, uses: object) -> Node | None:
        if isinstance(node, Reshape):
            return Reshape(name=node.name, x=node.x, shape=node.shape)
        return None

    b = Builder()
    looping = repeat("looping", rewrite_pass("flip")(flip))
    with pytest.raises(QuantglowError, match="looping"):
        looping(b.graph(b.reshape(b.input(2), 2, 1)))


def test_an_int8_graph_keeps_its_integers() -> None:
    b = Builder()
    x = b.make(Quantize, x=b.input(1, 2, 3, 4), out=INT8)
    pooled = b.spatial(MaxPool, x, kernel=(2, 2))
    y = b.make(Dequantize, x=b.make(ReduceMax, x=pooled, axes=(2, 3)))
    before = b.graph(y)
    assert_same_function(before, optimize(before))
