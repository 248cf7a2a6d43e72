"""Importers of normalizations and softmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.tensor.shape import channels_first, channels_last, normal
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.binary import Add, Div, Mul, Sub
from quantglow.ir.ops.expression import arg, const
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.normalization import (
    LRN,
    BatchNormalization,
    LayerNormalization,
    LogSoftmax,
    Softmax,
)
from quantglow.ir.ops.pooling import ReduceMean, ReduceSum
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.shape import Reshape, Transpose
from quantglow.ir.ops.unary import Abs, Reciprocal, Sqrt
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal, fixed, prod
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

LEAST_DEVIATION = 1e-9
"""Term that the definition of MeanVarianceNormalization adds to the deviation."""


@importer("BatchNormalization")
def batch_normalization(call: Call) -> Node:
    if call.integer("training_mode", 0):
        raise Unsupported("training_mode is set; export the model for inference")
    if not call.integer("spatial", 1):
        raise Unsupported("spatial = 0 normalizes each element on its own")
    x = channels_last(call, call.node(0), call.value_name(0))
    gamma, beta, mean, var = (call.weights(i, "f32", lambda a: a) for i in (1, 2, 3, 4))
    normalized = BatchNormalization(
        name=call.result,
        x=x,
        gamma=gamma,
        beta=beta,
        mean=mean,
        var=var,
        epsilon=call.number("epsilon", 1e-5),
    )
    return channels_first(call, normalized)


@importer("LayerNormalization")
def layer_normalization(call: Call) -> list[Node]:
    """Over all axes from ``axis`` on, flattened to one; mean and inverse deviation where asked."""
    x = call.node(0)
    rank = x.type.rank
    axis = call.integer("axis", -1)
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is outside rank {rank}")
    row = x.type.shape[axis % rank :]
    epsilon = call.number("epsilon", 1e-5)
    if not all(_is_row(call, position, len(row)) for position in (1, 2)):
        y = _by_operands(call, x, prod(row), epsilon)
    else:
        y = _by_constants(call, x, row, epsilon)
    if not any(call.proto.output[1:]):
        return [y]
    return [y, *_moments(call, x, tuple(range(axis % rank, rank)), epsilon)]


def _is_row(call: Call, position: int, rank: int) -> bool:
    """Whether an operand is known and the same for each row of so many axes, or left out."""
    return not call.has(position) or (call.is_known(position) and len(call.shape(position)) <= rank)


def _by_constants(call: Call, x: Node, row: Shape, epsilon: float) -> Node:
    """Rows normalized, times gamma plus beta, which are known."""

    def flat(array: Array) -> Array:
        return np.broadcast_to(array, fixed(row)).reshape(-1)

    gamma = call.weights(1, "gamma", flat)
    beta = call.weights(2, "beta", flat) if call.has(2) else None

    def normalize(name: str, x: Node) -> Node:
        return LayerNormalization(name=name, x=x, gamma=gamma, beta=beta, epsilon=epsilon)

    return _in_rows(call, x, prod(row), normalize)


def _by_operands(call: Call, x: Node, columns: Dim, epsilon: float) -> Node:
    """Rows normalized where gamma or beta is computed, or differs from row to row.

    ONNX's definition as a function computes the variance as a difference of two means, of which
    float32 leaves little if they are large.
    """
    shape = (x.type.size // columns, columns)
    rows = Reshape(name=call.derive("rows"), x=x, shape=shape)
    normalized = LayerNormalization(name=call.derive("normalized"), x=rows, epsilon=epsilon)
    back = Reshape(name=call.derive("shape"), x=normalized, shape=x.type.shape)
    has_beta = call.has(2)
    name = call.derive("scaled") if has_beta else call.result
    scaled = Mul(name=name, x=back, y=call.node(1))
    return Add(name=call.result, x=scaled, y=call.node(2)) if has_beta else scaled


def _moments(call: Call, x: Node, axes: tuple[int, ...], epsilon: float) -> list[Node]:
    """``mean`` and ``1 / sqrt(variance + epsilon)`` over some axes, which are kept."""

    def name(position: int, tag: str) -> str:
        names = call.proto.output[position : position + 1]
        return call.result_name(position) if any(names) else call.derive(tag)

    mean = ReduceMean(name=name(1, "mean"), x=x, axes=axes)
    centered = Sub(name=call.derive("centred"), x=x, y=mean)
    squares = Mul(name=call.derive("squares"), x=centered, y=centered)
    variance = ReduceMean(name=call.derive("variance"), x=squares, axes=axes)
    least = call.constant("epsilon", np.array(epsilon, np.float32))
    root = Sqrt(name=call.derive("root"), x=Add(name=call.derive("sum"), x=variance, y=least))
    return [mean, Reciprocal(name=name(2, "inverse"), x=root)]


def _in_rows(call: Call, x: Node, columns: Dim, operator: Callable[[str, Node], Node]) -> Node:
    """``operator(name, x)`` on x as rows of so many columns, and back to the shape of x."""
    if decide_equal(x.type.shape[-1:], (columns,)):
        return operator(call.result, x)
    shape = (x.type.size // columns, columns)
    rows = Reshape(name=call.derive("rows"), x=x, shape=shape)
    return Reshape(name=call.derive("shape"), x=operator(call.result, rows), shape=x.type.shape)


@importer("MeanVarianceNormalization")
def mean_variance_normalization(call: Call) -> Node:
    """``(x - mean) / (deviation + 1e-9)``, the variance being the mean of ``(x - mean)^2``: in the
    definition it is a difference of two means, of which float32 leaves little if they are large.
    """
    x = call.node(0)
    axes = tuple(sorted(normal(call.integers("axes", (0, 2, 3)), x.type.rank)))
    mean = ReduceMean(name=call.derive("mean"), x=x, axes=axes)
    centered = Sub(name=call.derive("centred"), x=x, y=mean)
    squares = Mul(name=call.derive("squares"), x=centered, y=centered)
    variance = ReduceMean(name=call.derive("variance"), x=squares, axes=axes)
    root = Sqrt(name=call.derive("root"), x=variance)
    least = call.constant("epsilon", np.array(LEAST_DEVIATION, np.float32))
    deviation = Add(name=call.derive("deviation"), x=root, y=least)
    return Div(name=call.result, x=centered, y=deviation)


@importer("InstanceNormalization")
def instance_normalization(call: Call) -> Node:
    """Rows are the pixels of one channel of one image."""
    return group(call, call.shape(0)[1])


@importer("GroupNormalization")
def group_normalization(call: Call) -> Node:
    """Rows are the channels of one group.  (The form of opset 18 is not valid any more.)"""
    channels, groups = call.shape(0)[1], call.integer("num_groups", 1)
    if groups < 1 or decide(channels % groups != 0):
        raise Unsupported(f"{channels} channels do not make {groups} groups")
    return group(call, groups)


def group(call: Call, groups: Dim) -> Node:
    """x [N, C, …] normalized over C / groups channels and all pixels, times gamma plus beta."""
    x = call.node(0)
    n, c, *pixels = x.type.shape
    gamma, beta = (
        _of_channels(call, i, tag, (c, *(1 for _ in pixels)))
        for i, tag in ((1, "gamma"), (2, "beta"))
    )
    shape = (n * groups, x.type.size // (n * groups))
    rows = Reshape(name=call.derive("rows"), x=x, shape=shape)
    epsilon = call.number("epsilon", 1e-5)
    normalized = LayerNormalization(name=call.derive("normalized"), x=rows, epsilon=epsilon)
    back = Reshape(name=call.derive("shape"), x=normalized, shape=x.type.shape)
    scaled = Mul(name=call.derive("scaled"), x=back, y=gamma)
    return Add(name=call.result, x=scaled, y=beta)


def _of_channels(call: Call, position: int, tag: str, shape: Shape) -> Node:
    """An operand with one element for each channel, known or computed."""
    if call.is_known(position):
        return call.constant(tag, call.array(position, tag).reshape(fixed(shape)))
    return Reshape(name=call.derive(tag), x=call.node(position), shape=shape)


@importer("LRN")
def lrn(call: Call) -> Node:
    normalized = LRN(
        name=call.result,
        x=channels_last(call, call.node(0), call.value_name(0)),
        size=call.integer("size", 0),
        alpha=call.number("alpha", 1e-4),
        beta=call.number("beta", 0.75),
        bias=call.number("bias", 1.0),
    )
    return channels_first(call, normalized)


@importer("Softmax", "LogSoftmax")
def softmax(call: Call) -> Node:
    """Over one axis since opset 13; before, over all axes from ``axis`` on, flattened."""
    x = call.node(0)
    rank = x.type.rank
    axis = call.integer("axis", -1 if call.opset >= 13 else 1)
    if not -rank <= axis <= rank - (call.opset >= 13):
        raise Unsupported(f"axis {axis} is outside rank {rank}")
    axis = axis % rank if axis < 0 else axis
    if axis == rank - 1:
        return _over_last_axis(call, x)
    return _over_axis(call, x, axis) if call.opset >= 13 else _over_rows(call, x, axis)


def _over_last_axis(call: Call, x: Node) -> Node:
    operator = Softmax if call.proto.op_type == "Softmax" else LogSoftmax
    return operator(name=call.result, x=x)


def _over_axis(call: Call, x: Node, axis: int) -> Node:
    """Swap the axis with the last one, and back."""
    perm = list(range(x.type.rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    moved = Transpose(name=call.derive("moved"), x=x, perm=tuple(perm))
    normalized = _over_last_axis(call, moved)
    return Transpose(name=call.derive("back"), x=normalized, perm=tuple(perm))


def _over_rows(call: Call, x: Node, axis: int) -> Node:
    """Flatten to rows of everything from ``axis`` on, and back."""
    shape = x.type.shape
    rows = (prod(shape[:axis]), prod(shape[axis:]))
    flat = Reshape(name=call.derive("rows"), x=x, shape=rows)
    return Reshape(name=call.derive("shape"), x=_over_last_axis(call, flat), shape=shape)


@importer("LpNormalization")
def lp_normalization(call: Call) -> Node:
    """x over its norm along an axis: the sum of magnitudes (p = 1) or its length (p = 2)."""
    x, p = call.node(0), call.integer("p", 2)
    axes = (call.integer("axis", -1) % x.type.rank,)
    if p == 1:
        magnitude = Abs(name=call.derive("abs"), x=x)
        norm: Node = ReduceSum(name=call.derive("norm"), x=magnitude, axes=axes)
    else:
        squares = Mul(name=call.derive("squares"), x=x, y=x)
        total = ReduceSum(name=call.derive("sum"), x=squares, axes=axes)
        norm = Sqrt(name=call.derive("norm"), x=total)
    quotient = fn("div", arg(0), arg(1))
    value = fn("select", fn("eq", arg(1), const(0)), const(0), quotient)
    element = ElementType(DType.F32)
    return Elementwise(name=call.result, args=(x, norm), expression=value, out=element)
