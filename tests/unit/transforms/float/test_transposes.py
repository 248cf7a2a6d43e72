"""Transposes sink, climb, merge and cancel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    LRN,
    Abs,
    Add,
    Concat,
    Dequantize,
    Expand,
    Gemm,
    LeakyRelu,
    MatMul,
    Mul,
    Pad,
    Pow,
    PRelu,
    Quantize,
    ReduceMax,
    ReduceMean,
    ReduceSum,
    Relu,
    Slice,
    Softmax,
    Transpose,
)
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.transforms.float import (
    fold_transpose_into_gemm,
    hoist_transpose,
    merge_transposes,
    optimize,
    sink_transpose,
    sink_transpose_below_reshape,
    transpose_to_reshape,
)
from tests.generators.values import permutations, shapes
from tests.support.builder import TO_NCHW, TO_NHWC, Builder, assert_same_function, ops_of, rewritten
from tests.support.effort import moderate

INT8 = ElementType(DType.I8, QuantParams.per_tensor(0.05, 3))


def image(b: Builder) -> Node:
    """An NHWC input as NCHW [2, 3, 4, 5]."""
    return b.transpose(b.input(2, 4, 5, 3), *TO_NCHW)


def element_wise(b: Builder, kind: str, x: Node) -> Node:
    makers = {
        "relu": lambda: b.make(Relu, x=x),
        "leaky": lambda: b.make(LeakyRelu, x=x, alpha=0.1),
        "quantize": lambda: b.make(Dequantize, x=b.make(Quantize, x=x, out=INT8)),
        "prelu": lambda: b.make(PRelu, x=x, slope=b.drawn(3, 1, 1)),
        "slice": lambda: b.make(
            Slice, x=x, starts=(0, 2, 1, 0), sizes=(1, 2, 3, 5), steps=(1, -1, 1, 1)
        ),
        "pad": lambda: b.make(Pad, x=x, before=(0, 1, 0, 2), after=(1, 0, 3, 0), value=1.5),
        "expand": lambda: b.make(Expand, x=x, shape=(2, 3, 4, 5)),
        "concat": lambda: b.make(Concat, parts=(x, x, b.drawn(2, 1, 4, 5)), axis=1),
        "add-vector": lambda: b.make(Add, x=x, y=b.drawn(5)),
        "add-lower-rank": lambda: b.make(Add, x=b.drawn(3, 1, 1), y=x),
        "add-scalar": lambda: b.make(Add, x=x, y=b.drawn()),
        "add-self": lambda: b.make(Add, x=x, y=x),
    }
    return makers[kind]()


KINDS = [
    "relu",
    "leaky",
    "quantize",
    "prelu",
    "slice",
    "pad",
    "expand",
    "concat",
    "add-vector",
    "add-lower-rank",
    "add-scalar",
    "add-self",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_transpose_sinks_below(kind: str) -> None:
    b = Builder()
    after = rewritten(sink_transpose, b, [element_wise(b, kind, image(b))])
    assert [i for i, op in enumerate(ops_of(after)) if op == "Transpose"] == [
        len(ops_of(after)) - 1
    ]


def test_an_expand_to_more_axes_stays_below() -> None:
    b = Builder()
    x = b.transpose(b.input(4, 5, 3), 1, 2, 0)
    after = rewritten(sink_transpose, b, [b.make(Expand, x=x, shape=(2, 5, 3, 4))])
    assert ops_of(after)[-1] == "Expand"


@pytest.mark.parametrize("op", [ReduceMean, ReduceSum, ReduceMax])
@pytest.mark.parametrize("axes", [(0,), (1,), (1, 3), (2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_a_transpose_sinks_below_reductions(
    op: type[Node], axes: tuple[int, ...], keepdims: bool
) -> None:
    b = Builder()
    y = b.make(op, x=image(b), axes=axes, keepdims=keepdims)
    assert ops_of(rewritten(sink_transpose, b, [y]))[0] == op.__name__


def test_a_transpose_sinks_below_softmax_only_where_the_last_axis_stays() -> None:
    b = Builder()
    x = b.input(2, 3, 4)
    rows = b.make(Softmax, x=b.transpose(x, 1, 0, 2))
    columns = b.make(Softmax, x=b.transpose(x, 0, 2, 1))
    after = rewritten(sink_transpose, b, [rows, columns])
    assert ops_of(after) == ["Softmax", "Transpose", "Transpose", "Softmax"]


def test_names_of_values_stay_with_the_operator() -> None:
    b = Builder()
    y = b.make(Relu, x=image(b))
    after = rewritten(sink_transpose, b, [y])
    assert after.by_name(y.name).op == "Relu"


@pytest.mark.parametrize("rank", [3, 4])
def test_an_operand_without_transpose_gets_one(rank: int) -> None:
    b = Builder()
    y = b.make(Mul, x=image(b), y=b.input(*(2, 3, 4, 5)[-rank:]))
    assert ops_of(rewritten(sink_transpose, b, [y]))[-2:] == ["Mul", "Transpose"]


def test_a_gate_from_a_reshape_is_reshaped_instead() -> None:
    b = Builder()
    gate = b.reshape(b.input(2, 3), 2, 3, 1, 1)
    y = b.make(Mul, x=image(b), y=gate)
    assert ops_of(rewritten(sink_transpose, b, [y])) == ["Reshape", "Reshape", "Mul", "Transpose"]


def test_other_permutations_do_not_spread() -> None:
    b = Builder()
    before = b.graph(b.make(Add, x=b.transpose(b.input(2, 3), 1, 0), y=b.input(3, 2)))
    assert sink_transpose(before) is before


@pytest.mark.parametrize("kind", ["relu", "leaky", "prelu", "slice", "pad", "add-vector"])
def test_a_transpose_to_channels_last_climbs(kind: str) -> None:
    b = Builder()
    y = b.transpose(element_wise(b, kind, b.input(2, 3, 4, 5)), *TO_NHWC)
    assert ops_of(rewritten(hoist_transpose, b, [y]))[0] == "Transpose"


def test_other_readers_of_a_climbed_node_get_it_back_transposed() -> None:
    b = Builder()
    x = b.make(Relu, x=b.input(2, 3, 4, 5))
    after = rewritten(hoist_transpose, b, [b.transpose(x, *TO_NHWC), x])
    assert ops_of(after) == ["Transpose", "Relu", "Transpose"]


@given(data=st.data(), rank=st.integers(1, 5))
@moderate
def test_transposes_merge(data: st.DataObject, rank: int) -> None:
    b = Builder()
    x: Node = b.input(*data.draw(shapes(rank)))
    for perm in data.draw(st.lists(permutations(rank), min_size=2, max_size=3)):
        x = b.transpose(x, *perm)
    assert len(ops_of(rewritten(merge_transposes, b, [x]))) <= 1


@given(data=st.data(), rank=st.integers(1, 4))
def test_a_transpose_before_any_reshape_keeps_the_function(data: st.DataObject, rank: int) -> None:
    b = Builder()
    x = b.transpose(b.input(*data.draw(shapes(rank, 4))), *data.draw(permutations(rank)))
    parts = [f for d in x.type.shape for f in ((2, 2) if d == 4 else (d,))]
    cuts = data.draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))
    shape: list[int] = []
    for size, cut in zip(parts, cuts, strict=True):
        if cut or not shape:
            shape.append(size)
        else:
            shape[-1] *= size
    y = b.reshape(x, *shape, 1)
    before = b.graph(y)
    assert_same_function(before, sink_transpose_below_reshape(before))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("height", [1, 3])
def test_the_channel_shuffle_ends_in_nhwc(batch: int, height: int) -> None:
    b = Builder()
    x = b.conv(b.input(batch, 2, height, 4), 6)
    split = b.transpose(b.reshape(x, batch, 2, 3, height, 4), 0, 2, 1, 3, 4)
    before = b.graph(b.conv(b.reshape(split, batch, 6, height, 4), 2))
    after = optimize(before)
    assert_same_function(before, after)
    perms = [node.perm for node in after.nodes if isinstance(node, Transpose)]
    assert [len(perm) for perm in perms] == [4, 5, 4]


def test_space_to_depth_between_convolutions_needs_one_transpose() -> None:
    b = Builder()
    x = b.conv(b.input(1, 2, 4, 4), 4)
    split = b.transpose(b.reshape(x, 1, 2, 2, 1, 4, 4), 0, 3, 4, 1, 5, 2)
    before = b.graph(b.conv(b.reshape(split, 1, 1, 8, 8), 2))
    after = optimize(before)
    assert_same_function(before, after)
    assert ops_of(after).count("Transpose") <= 3


def test_a_transpose_of_ones_is_a_reshape() -> None:
    b = Builder()
    y = b.transpose(b.input(2, 1, 1, 3), *TO_NCHW)
    assert ops_of(rewritten(transpose_to_reshape, b, [y])) == ["Reshape"]


def test_a_transpose_of_data_is_not_a_reshape() -> None:
    b = Builder()
    before = b.graph(b.transpose(b.input(2, 1, 2, 3), *TO_NCHW))
    assert transpose_to_reshape(before) is before


@pytest.mark.parametrize("batch", [1, 3])
def test_the_flatten_before_a_gemm_reorders_its_rows(batch: int) -> None:
    b = Builder()
    x = b.transpose(b.input(batch, 2, 3, 4), *TO_NCHW)
    y = b.gemm(b.reshape(x, batch, 24), 5)
    after = rewritten(fold_transpose_into_gemm, b, [y])
    assert ops_of(after) == ["Reshape", "Gemm"]


def test_a_flatten_over_the_batch_is_refused() -> None:
    b = Builder()
    x = b.transpose(b.input(2, 3, 4, 2), 3, 0, 1, 2)
    y = b.make(Gemm, x=b.reshape(x, 2, 24), w=b.drawn(24, 2))
    assert "Transpose" in ops_of(rewritten(fold_transpose_into_gemm, b, [y]))


def test_attention_keeps_its_transposes() -> None:
    b = Builder()
    q = b.transpose(b.reshape(b.input(2, 5, 6), 2, 5, 2, 3), 0, 2, 1, 3)
    k = b.transpose(b.reshape(b.input(2, 5, 6), 2, 5, 2, 3), 0, 2, 3, 1)
    product = b.make(MatMul, x=b.make(MatMul, x=q, y=k), y=q)
    before = b.graph(b.reshape(b.transpose(product, 0, 2, 1, 3), 2, 5, 6))
    after = optimize(before)
    assert_same_function(before, after)
    assert ops_of(after).count("Transpose") == 3


def test_per_axis_quantized_weights_are_not_moved() -> None:
    b = Builder()
    element = ElementType(DType.I8, QuantParams.symmetric(np.ones(3), axis=2))
    w = b.make(Transpose, x=b.make_constant(np.ones((1, 2, 3), np.int8), element), perm=(0, 2, 1))
    before = b.graph(b.make(Transpose, x=w, perm=(0, 2, 1)))
    assert merge_transposes(before) is before


def test_a_value_wanted_in_two_layouts_does_not_send_transposes_round() -> None:
    b = Builder()
    x = b.make(Abs, x=b.spatial(LRN, b.input(1, 1, 17, 15), size=5))
    y = b.make(Pow, x=b.make(Add, x=x, y=b.constant(0.25)), y=b.constant(-1))
    before = b.graph(b.make(MatMul, x=b.transpose(y, *TO_NCHW), y=x))
    after = optimize(before)
    assert_same_function(before, after)
    assert ops_of(after).count("Transpose") <= 4
