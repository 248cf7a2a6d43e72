"""Lowering of operators along one axis: reductions, Gather, Scatter, TopK, antialiased resizing.

A reduction works on the middle axis of [outer, reduced, inner], Gather on that of [outer, rows,
inner]; Scatter and TopK work on rows.

Antialiased resizing becomes products with its weights.  Each result reads a band of pixels only, so
the results of an axis are computed in blocks, each from the pixels that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    LRN,
    AveragePool,
    Concat,
    Elementwise,
    Gather,
    Gemm,
    LayerNormalization,
    LogSoftmax,
    MatMul,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    RowMap,
    Scatter,
    Slice,
    Softmax,
    TopK,
    Transpose,
)
from quantglow.ir.ops.expression import Expr, arg, call, center_float, const, quantize
from quantglow.ir.ops.pooling import Reduce
from quantglow.ir.ops.resize import AntialiasedResize
from quantglow.ir.symbolic.size import Dim, prod
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from quantglow.transforms.lowering.rules import lowering_rules, lowers, tag

FLOAT = ElementType(DType.F32)


def _lower_reduce(node: Node) -> Node | None:
    """Reduce(x, axes) -> Reshape(Reduce(x as [outer, reduced, inner], axis 1))"""
    assert isinstance(node, Reduce)
    if node.x.type.rank == 3 and node.axes == (1,) and node.keepdims:
        return None
    shape, axes = node.x.type.shape, node.axes
    x = node.x
    inner: Dim = 1
    if not axes or list(axes) != list(range(axes[0], axes[-1] + 1)):
        outer_axes = [i for i in range(len(shape)) if i not in axes]
        x = Transpose(name=tag(node, "gathered"), x=x, perm=(*outer_axes, *axes))
        outer = prod(shape[i] for i in outer_axes)
    else:
        outer, inner = prod(shape[: axes[0]]), prod(shape[axes[-1] + 1 :])
    reduced = prod(shape[i] for i in axes)
    x = Reshape(name=tag(node, "middle"), x=x, shape=(outer, reduced, inner))
    changes: dict[str, Any] = {"x": x, "axes": (1,), "keepdims": True}
    core = replace(node, name=tag(node, "reduced"), **changes)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


lowering_rules.update(dict.fromkeys((ReduceMean, ReduceSum, ReduceMax, ReduceMin), _lower_reduce))


@lowers(Softmax)
def lower_softmax(node: Softmax) -> Node | None:
    """Integers: Softmax of any rank -> Softmax of rows.  Floats: powers / their sum as RowMap"""
    if node.out is None:
        powers = call("expneg", call("sub", arg(0), call("rowmax", arg(0))))
        share = call("div", const(1), call("rowsum", powers))
        return _rows(node, (node.x,), call("mul", powers, share))
    if node.x.type.rank == 2:
        return None
    columns = node.x.type.shape[-1]
    rows = Reshape(name=tag(node, "rows"), x=node.x, shape=(node.x.type.size // columns, columns))
    core = replace(node, name=tag(node, "softmax"), x=rows)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


@lowers(LogSoftmax)
def lower_log_softmax(node: LogSoftmax) -> Node:
    """x - max - log(sum(exp(x - max)))"""
    shifted = call("sub", arg(0), call("rowmax", arg(0)))
    total = call("rowsum", call("expneg", shifted))
    return _rows(node, (node.x,), call("sub", shifted, call("log", total)))


@lowers(LayerNormalization)
def lower_layer_normalization(node: LayerNormalization) -> Node:
    """(x - mean) * (1 / sqrt(var + eps)) * gamma + beta; the root once for each row"""
    length = const(float(node.type.shape[-1]))
    x = arg(0) if node.out is None else dequantize(node.x.type.params)
    centered = call("sub", x, call("div", call("rowsum", x), length))
    variance = call("div", call("rowsum", call("mul", centered, centered)), length)
    root = call("sqrt", call("add", variance, const(node.epsilon)))
    args: tuple[Node, ...] = (node.x,)
    value = call("mul", centered, call("div", const(1), root))
    for op, parameter in (("mul", node.gamma), ("add", node.beta)):
        if parameter is not None:
            value, args = call(op, value, arg(len(args))), (*args, parameter)
    if node.out is not None:
        steps = call("div", value, const(node.type.params.scale))
        value = quantize(steps, *node.out.dtype.limits, node.type.params.zero_point)
    return _rows(node, args, value)


def dequantize(params: QuantParams) -> Expr:
    """The reals of the first operand, as ``Dequantize`` gives them."""
    return call("mul", center_float(0, params.zero_point), const(params.scale))


def _rows(node: Node, args: tuple[Node, ...], value: Expr) -> RowMap:
    return RowMap(name=node.name, args=args, expression=value, out=node.type.element)


@lowers(LRN)
def lower_lrn(node: LRN) -> Node:
    """x / (bias + alpha * mean of squares over neighboring channels) ** beta

    The window along channels is a pool over [pixels, 1, channels, 1].
    """
    shape = node.x.type.shape
    squares = Elementwise(
        name=tag(node, "squares"), args=(node.x,), expression=call("mul", arg(0), arg(0)), out=FLOAT
    )
    image = Reshape(name=tag(node, "image"), x=squares, shape=(prod(shape[:-1]), 1, shape[-1], 1))
    before = (node.size - 1) // 2
    means = AveragePool(
        name=tag(node, "means"),
        x=image,
        kernel=(1, node.size),
        pads=(0, before, 0, node.size - 1 - before),
        count_include_pad=True,
    )
    means_back = Reshape(name=tag(node, "window"), x=means, shape=shape)
    base = call("add", const(node.bias), call("mul", arg(1), const(node.alpha)))
    value = call("div", arg(0), call("pow", base, const(node.beta)))
    return Elementwise(name=node.name, args=(node.x, means_back), expression=value, out=FLOAT)


@lowers(Gather)
def lower_gather(node: Gather) -> Node | None:
    """Gather(x, indices, axis) -> Reshape(Gather(x as [outer, rows, inner], flat indices, 1))"""
    shape, indices = node.x.type.shape, node.indices.type
    if len(shape) == 3 and node.axis == 1 and indices.rank == 1:
        return None
    outer, inner = prod(shape[: node.axis]), prod(shape[node.axis + 1 :])
    core = Gather(
        name=tag(node, "gathered"),
        x=Reshape(name=tag(node, "rows"), x=node.x, shape=(outer, shape[node.axis], inner)),
        indices=Reshape(name=tag(node, "flat"), x=node.indices, shape=(indices.size,)),
        axis=1,
    )
    return Reshape(name=node.name, x=core, shape=node.type.shape)


@lowers(Scatter)
def lower_scatter(node: Scatter) -> Node | None:
    """Scatter of any rank -> Scatter of rows"""
    if node.x.type.rank == 2:
        return None
    rows, inner = node.x.type.shape[0], prod(node.x.type.shape[1:])
    updates = (node.indices.type.size, inner)
    changes: dict[str, Any] = {
        "x": Reshape(name=tag(node, "rows"), x=node.x, shape=(rows, inner)),
        "updates": Reshape(name=tag(node, "new"), x=node.updates, shape=updates),
    }
    core = replace(node, name=tag(node, "scattered"), **changes)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


@lowers(TopK)
def lower_top_k(node: TopK) -> Node | None:
    """TopK of any rank -> TopK of rows"""
    if node.x.type.rank == 2:
        return None
    length = node.x.type.shape[-1]
    x = Reshape(name=tag(node, "rows"), x=node.x, shape=(node.x.type.size // length, length))
    core = replace(node, name=tag(node, "chosen"), x=x)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


BLOCK = 16
"""Rows or columns that are computed at once."""


@lowers(AntialiasedResize)
def lower_antialiased_resize(node: AntialiasedResize) -> Node:
    """weights of H @ x, then weights of W @ that, in blocks"""
    lines = _resample_lines(node)
    n, h, _, c = node.type.shape
    width = node.x.type.shape[2]
    images = Reshape(name=tag(node, "columns"), x=lines, shape=(n * h, width, c))
    planes = Transpose(name=tag(node, "planes"), x=images, perm=(0, 2, 1))
    matrix = Reshape(name=tag(node, "matrix"), x=planes, shape=(n * h * c, width))
    resized = _resample_columns(node, matrix)
    narrowed = Reshape(name=tag(node, "narrowed"), x=resized, shape=(n * h, c, node.sizes[1]))
    pixels = Transpose(name=tag(node, "pixels"), x=narrowed, perm=(0, 2, 1))
    return Reshape(name=node.name, x=pixels, shape=node.type.shape)


def _resample_lines(node: AntialiasedResize) -> Node:
    """The image with its final height: [N, rows, W * C]."""
    n, h, w, c = node.x.type.shape
    lines = Reshape(name=tag(node, "lines"), x=node.x, shape=(n, h, w * c))
    blocks = [
        MatMul(
            name=tag(node, f"rows{index}"),
            x=Constant(name=tag(node, f"rows{index}-weights"), value=weights),
            y=band(node, lines, first, weights.shape[1], f"band{index}"),
        )
        for index, (first, weights) in enumerate(bands(node.weights(0)))
    ]
    return join(node, blocks, "shortened")


def _resample_columns(node: AntialiasedResize, matrix: Node) -> Node:
    """The product of rows of pixels, [rows, W], with the weights of W."""
    blocks = [
        Gemm(
            name=tag(node, f"columns{index}"),
            x=band(node, matrix, first, weights.shape[1], f"part{index}"),
            w=Constant(name=tag(node, f"columns{index}-weights"), value=weights.T.copy()),
        )
        for index, (first, weights) in enumerate(bands(node.weights(1)))
    ]
    return join(node, blocks, "blocks")


def bands(weights: Array) -> Iterator[tuple[int, Array]]:
    """For each block of results: the first pixel that it reads, and its weights from there on."""
    for begin in range(0, len(weights), BLOCK):
        block = weights[begin : begin + BLOCK]
        read = np.flatnonzero(block.any(axis=0))
        yield int(read[0]), np.ascontiguousarray(block[:, read[0] : read[-1] + 1])


def band(node: AntialiasedResize, x: Node, first: int, count: int, role: str) -> Node:
    """A part of axis 1."""
    before, _, *after = x.type.shape
    starts, sizes = (0, first, *(0 for _ in after)), (before, count, *after)
    return Slice(name=tag(node, role), x=x, starts=starts, sizes=sizes, steps=(1,) * x.type.rank)


def join(node: AntialiasedResize, blocks: Sequence[Node], role: str) -> Node:
    """The blocks one behind the other along axis 1."""
    return blocks[0] if len(blocks) == 1 else Concat(name=tag(node, role), parts=(*blocks,), axis=1)
