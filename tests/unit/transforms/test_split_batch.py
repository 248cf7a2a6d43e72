"""A graph for a part of its batch gives the same results for these samples, or there is none."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.types import f32
from quantglow.transforms.split_batch import split_batch

BATCH = 6
RNG = np.random.default_rng(0)


def constant(*shape: int) -> Constant:
    return Constant(name=f"c{shape}", value=RNG.standard_normal(shape).astype(np.float32))


X = Input(name="x", tensor=f32(BATCH, 5, 4, 3))
ROWS = Input(name="x", tensor=f32(BATCH, 7))
RELU = ops.Relu(name="y", x=ROWS)
SQUARE = Input(name="x", tensor=f32(BATCH, BATCH))
PAIRS = ops.Reshape(name="r", x=X, shape=(BATCH * 20, 3))
LARGEST = ops.TopK(name="t", x=ROWS, k=2)
PLACES = Constant(name="i", value=np.array([4, 0, 2], np.int64))
APART: dict[str, Node] = {
    "conv": ops.Conv(name="y", x=X, w=constant(3, 3, 3, 8), pads=(1, 1, 1, 1)),
    "transposed conv": ops.ConvTranspose(name="y", x=X, w=constant(2, 2, 3, 2), strides=(2, 2)),
    "pool": ops.MaxPool(name="y", x=X, kernel=(2, 2), strides=(2, 2)),
    "gemm": ops.Gemm(name="y", x=ROWS, w=constant(7, 2)),
    "constant for all samples": ops.Add(name="y", x=X, y=constant(4, 3)),
    "constant with axis 0": ops.Mul(name="y", x=X, y=constant(1, 5, 1, 1)),
    "two operands": ops.Max(name="y", x=X, y=ops.Relu(name="r", x=X)),
    "mean of pixels": ops.ReduceMean(name="y", x=X, axes=(1, 2), keepdims=False),
    "softmax": ops.Softmax(name="y", x=ROWS),
    "channels joined": ops.Concat(name="y", parts=(X, X), axis=3),
    "transpose of a sample": ops.Transpose(name="y", x=X, perm=(0, 3, 1, 2)),
    "flatten": ops.Reshape(name="y", x=X, shape=(BATCH, 60)),
    "crop": ops.Slice(
        name="y", x=X, starts=(0, 1, 0, 2), sizes=(BATCH, 2, 4, 1), steps=(1, 2, 1, 1)
    ),
    "border": ops.Pad(name="y", x=X, before=(0, 1, 0, 0), after=(0, 0, 2, 0)),
    "resize": ops.Resize(name="y", x=X, sizes=(10, 8), scales=(2.0, 2.0)),
    "product with a constant": ops.MatMul(name="y", x=X, y=constant(3, 2)),
    "product of samples": ops.MatMul(
        name="y", x=X, y=ops.Transpose(name="t", x=X, perm=(0, 1, 3, 2))
    ),
    "several rows of a sample": ops.Reshape(
        name="y", x=ops.Gemm(name="g", x=PAIRS, w=constant(3, 2)), shape=(BATCH, 5, 4, 2)
    ),
    "windows of a sample": ops.Reshape(
        name="y",
        x=ops.Softmax(name="s", x=ops.Reshape(name="w", x=X, shape=(BATCH * 5, 12))),
        shape=(BATCH, 60),
    ),
    "largest of a row": ops.Reshape(name="y", x=LARGEST, shape=(BATCH, 1, 2)),
    "rows of a table": ops.Gather(name="y", x=constant(7, 4), indices=LARGEST, axis=0),
    "the same rows of each": ops.Gather(name="y", x=X, indices=PLACES, axis=1),
    "repeated rows": ops.Expand(
        name="y",
        x=ops.ReduceMax(name="m", x=X, axes=(1,), keepdims=True),
        shape=(BATCH, 5, 4, 3),
    ),
    "a choice": ops.Where(
        name="y", condition=Constant(name="c", value=RNG.random((4, 3)) < 0.5), x=X, y=X
    ),
}
MIXED: dict[str, Node] = {
    "constant for each sample": ops.Add(name="y", x=X, y=constant(BATCH, 1, 1, 1)),
    "mean over samples": ops.ReduceMean(name="y", x=X, axes=(0,), keepdims=True),
    "samples joined": ops.Concat(name="y", parts=(X, X), axis=0),
    "samples moved": ops.Transpose(name="y", x=ROWS, perm=(1, 0)),
    "samples reversed": ops.Slice(
        name="y", x=ROWS, starts=(BATCH - 1, 0), sizes=(BATCH, 7), steps=(-1, 1)
    ),
    "rows of pairs": ops.Reshape(name="y", x=ROWS, shape=(3, 14)),
    "padded batch": ops.Pad(name="y", x=ROWS, before=(1, 0), after=(0, 0)),
    "product of a matrix with itself": ops.MatMul(name="y", x=SQUARE, y=SQUARE),
    "constant times samples": ops.MatMul(name="y", x=constant(BATCH, BATCH), y=SQUARE),
    "first rows of several": ops.Slice(
        name="y", x=PAIRS, starts=(0, 0), sizes=(BATCH, 3), steps=(1, 1)
    ),
    "rows at computed places": ops.Gather(name="y", x=ROWS, indices=LARGEST, axis=1),
    "samples at places": ops.Gather(name="y", x=ROWS, indices=PLACES, axis=0),
    "softmax over samples": ops.Softmax(name="y", x=Input(name="x", tensor=f32(BATCH))),
}


def graph_of(node: Node) -> Graph:
    """The node's graph, which has one Input."""
    observed, left = set[Node](), [node]
    while left:
        last = left.pop()
        observed.add(last)
        left += last.operands
    (x,) = (each for each in observed if isinstance(each, Input))
    return Graph((x,), (("y", node),))


@pytest.mark.parametrize("pieces", [2, 3, 6])
@pytest.mark.parametrize("name", APART)
def test_parts_give_what_the_whole_gives(name: str, pieces: int) -> None:
    graph = graph_of(APART[name])
    part = split_batch(graph, pieces)
    assert part is not None
    x = RNG.standard_normal(graph.inputs[0].type.shape).astype(np.float32)
    actual = [interpret(part, {"x": piece})[0] for piece in np.split(x, pieces)]
    np.testing.assert_allclose(np.concatenate(actual), interpret(graph, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize("name", MIXED)
def test_operators_that_mix_samples_have_no_parts(name: str) -> None:
    assert split_batch(graph_of(MIXED[name]), 2) is None


OUTPUTS: dict[str, tuple[Node, bool]] = {
    "an input": (ROWS, True),
    "the same value": (RELU, True),
    "a constant of one row for each sample": (constant(BATCH, 7), False),
    "a constant for all samples": (constant(1, 7), False),
    "no axes": (ops.ReduceSum(name="s", x=ROWS, axes=(0, 1), keepdims=False), False),
    "other samples": (
        ops.Slice(name="s", x=ROWS, starts=(1, 0), sizes=(3, 7), steps=(1, 1)),
        False,
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_must_be_made_of_samples(name: str) -> None:
    other, splits = OUTPUTS[name]
    part = split_batch(Graph((ROWS,), (("y", RELU), ("z", other))), 2)
    assert (part is not None) == splits
    assert part is None or [n.type.shape for _, n in part.outputs] == [(3, 7), (3, 7)]


def test_a_batch_has_no_uneven_parts() -> None:
    assert split_batch(graph_of(APART["conv"]), 4) is None
