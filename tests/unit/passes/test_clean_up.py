"""Constants, common subexpressions, identities, Reshape, Concat, Slice, Pad, pools, Gemm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantglow.errors import QuantglowError
from quantglow.graph.node import Node
from quantglow.graph.rewrite import rewrite_pass
from quantglow.ops import (
    Add,
    AveragePool,
    Clip,
    Concat,
    Constant,
    Conv,
    Dequantize,
    Expand,
    Gemm,
    MatMul,
    MaxPool,
    Mul,
    Pad,
    Quantize,
    ReduceMax,
    ReduceMean,
    Relu,
    Reshape,
    Resize,
    Sigmoid,
    Slice,
    Tanh,
)
from quantglow.passes import (
    canonicalize_pool,
    eliminate_common_subexpressions,
    eliminate_identity,
    fold_constants,
    fold_pad,
    gemm_to_conv,
    matmul_to_gemm,
    merge_reshapes,
    optimize,
    simplify_concat,
    simplify_slice,
    sink_reshape,
)
from quantglow.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from quantglow.passes.repeat import repeat
from quantglow.types import DType, ElementType, QuantParams
from tests.builder import Builder, assert_same_function, ops_of, rewritten

INT8 = ElementType(DType.I8, QuantParams.per_tensor(0.05, 3))


def cut(b: Builder, x: Node, start: int, size: int, axis: int = 1, step: int = 1) -> Node:
    starts, sizes, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return b.make(Slice, x=x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


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
def test_what_changes_the_value_stays(kind: str) -> None:
    b = Builder()
    before = b.graph(CHANGES[kind](b, b.input(1, 3, 4, 2)))
    assert eliminate_identity(before) is before


# Reshape, Concat, Slice


def test_reshapes_merge() -> None:
    b = Builder()
    x = b.input(2, 3)
    there, back = b.reshape(b.reshape(x, 6), 3, 2), b.reshape(b.reshape(x, 6), 2, 3)
    assert ops_of(rewritten(merge_reshapes, b, [there, back])) == ["Reshape"]


@pytest.mark.parametrize("shape", [(), (1, 1), (1, 1, 4), (3, 1), (2, 3, 4)])
def test_a_reshape_that_adds_ones_sinks(shape: tuple[int, ...]) -> None:
    b = Builder()
    wide = b.reshape(b.input(2, 1, 3, 4), 2, 3, 4)
    y = b.make(Relu, x=b.make(Add, x=wide, y=b.drawn(*shape)))
    assert ops_of(rewritten(sink_reshape, b, [y]))[-1] == "Reshape"


def test_a_reshape_that_mixes_axes_stays_above_a_constant() -> None:
    b = Builder()
    before = b.graph(b.make(Add, x=b.reshape(b.input(2, 6), 3, 4), y=b.drawn(3, 1)))
    assert sink_reshape(before) is before


def test_nested_concats_are_one() -> None:
    b = Builder()
    inner = b.make(Concat, parts=(b.input(2, 3), b.input(2, 1)), axis=1)
    y = b.make(Concat, parts=(b.input(2, 2), inner), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [y])) == ["Concat"]


def test_a_concat_with_another_reader_or_axis_stays() -> None:
    b = Builder()
    inner = b.make(Concat, parts=(b.input(2, 3), b.input(2, 1)), axis=1)
    across = b.make(Concat, parts=(inner, inner), axis=0)
    assert ops_of(rewritten(simplify_concat, b, [across])) == ["Concat", "Concat"]


@pytest.mark.parametrize(("cuts", "left"), [([(0, 2), (2, 3)], []), ([(0, 2), (2, 1)], ["Slice"])])
def test_neighbouring_slices_join(cuts: list[tuple[int, int]], left: list[str]) -> None:
    b = Builder()
    x = b.input(2, 5)
    y = b.make(Concat, parts=tuple(cut(b, x, *c) for c in cuts), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [y])) == left


def test_slices_that_leave_a_gap_or_swap_stay() -> None:
    b = Builder()
    x = b.input(2, 5)
    gap = b.make(Concat, parts=(cut(b, x, 0, 2), cut(b, x, 3, 2)), axis=1)
    swap = b.make(Concat, parts=(cut(b, x, 3, 2), cut(b, x, 0, 3)), axis=1)
    assert ops_of(rewritten(simplify_concat, b, [gap, swap])).count("Slice") == 4


@given(st.integers(0, 2), st.sampled_from([1, 2]), st.integers(1, 3), st.sampled_from([1, -1]))
@settings(max_examples=30, deadline=None)
def test_slices_of_slices_compose(start: int, step: int, size: int, direction: int) -> None:
    b = Builder()
    inner = cut(b, b.input(2, 9), start, 4, step=step)
    y = cut(b, inner, 0 if direction > 0 else size - 1, size, step=direction)
    assert ops_of(rewritten(simplify_slice, b, [y])) == ["Slice"]


@pytest.mark.parametrize(("start", "size", "kept"), [(0, 3, 1), (3, 2, 1), (4, 1, 1), (2, 2, 2)])
def test_a_slice_within_one_part_reads_that_part(start: int, size: int, kept: int) -> None:
    b = Builder()
    joined = b.make(Concat, parts=(b.input(2, 3), b.input(2, 2)), axis=1)
    assert len(ops_of(rewritten(simplify_slice, b, [cut(b, joined, start, size)]))) == kept


# fold_pad, canonicalize_pool


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


# Gemm


@pytest.mark.parametrize(("shape", "ops"), [((2, 3), 1), ((4, 2, 3), 3), ((1, 4, 2, 3), 3)])
def test_a_product_with_weights_is_a_gemm(shape: tuple[int, ...], ops: int) -> None:
    b = Builder()
    y = b.make(MatMul, x=b.input(*shape), y=b.drawn(3, 4))
    after = ops_of(rewritten(matmul_to_gemm, b, [y]))
    assert ("MatMul" not in after, len(after)) == (True, ops)


def test_a_product_of_activations_stays() -> None:
    b = Builder()
    before = b.graph(b.make(MatMul, x=b.input(2, 3), y=b.input(3, 4)))
    assert matmul_to_gemm(before) is before


def excitation(b: Builder, x: Node, extra: bool = False) -> list[Node]:
    n, _, _, c = x.type.shape
    squeezed = b.reshape(b.make(ReduceMean, x=x, axes=(1, 2)), n, c)
    inner = b.gemm(squeezed, 3)
    gate = b.make(Sigmoid, x=b.gemm(b.make(Relu, x=inner), c))
    return [b.make(Mul, x=x, y=b.reshape(gate, n, 1, 1, c)), *([inner] if extra else [])]


def test_squeeze_excite_with_gemm_becomes_convolutions() -> None:
    b = Builder()
    y = excitation(b, b.input(2, 3, 3, 4))
    after = ops_of(rewritten(gemm_to_conv, b, y))
    assert after == ["ReduceMean", "Conv", "Relu", "Conv", "Sigmoid", "Mul"]


def test_a_squeeze_that_others_read_stays_a_gemm() -> None:
    b = Builder()
    y = excitation(b, b.input(2, 3, 3, 4), extra=True)
    assert "Gemm" in ops_of(rewritten(gemm_to_conv, b, y))


def test_a_classifier_stays_a_gemm() -> None:
    b = Builder()
    x = b.make(ReduceMean, x=b.input(2, 3, 3, 4), axes=(1, 2))
    before = b.graph(b.make(Gemm, x=b.reshape(x, 2, 4), w=b.drawn(4, 5)))
    assert gemm_to_conv(before) is before


@pytest.mark.parametrize("keepdims", [True, False])
def test_squeeze_excite_in_nchw_ends_without_layout_changes(keepdims: bool) -> None:
    b = Builder()
    x = b.conv(b.input(1, 2, 4, 4), 4)
    squeezed = b.global_mean(x, keepdims)
    flat = b.reshape(squeezed, 1, 4) if keepdims else squeezed
    gate = b.make(Sigmoid, x=b.gemm(b.make(Relu, x=b.gemm(flat, 2)), 4))
    before = b.graph(b.conv(b.make(Mul, x=x, y=b.reshape(gate, 1, 4, 1, 1)), 3))
    after = optimize(before)
    assert_same_function(before, after)
    assert ops_of(after)[1:-1] == ["Conv", "ReduceMean", "Conv", "Conv", "Sigmoid", "Mul", "Conv"]


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
