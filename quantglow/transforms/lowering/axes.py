"""Lowering of reductions, Gather, Scatter and TopK to operators on the middle axis.

A reduction works on the middle axis of [outer, reduced, inner], Gather on that of [outer, rows,
inner]; Scatter and TopK work on rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    LRN,
    AveragePool,
    Elementwise,
    Gather,
    LayerNormalization,
    LogSoftmax,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    RowMap,
    Scatter,
    Softmax,
    TopK,
    Transpose,
)
from quantglow.ir.ops.expression import Expr, arg, call, center_float, const, quantize
from quantglow.ir.ops.pooling import Reduce
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.transforms.lowering.rules import lowering_rules, lowers, tag

FLOAT = ElementType(DType.F32)


def lower_reduce(node: Node) -> Node | None:
    """Reduce(x, axes) -> Reshape(Reduce(x as [outer, reduced, inner], axis 1))"""
    assert isinstance(node, Reduce)
    if node.x.type.rank == 3 and node.axes == (1,) and node.keepdims:
        return None
    shape, axes = node.x.type.shape, node.axes
    x = node.x
    if not axes or list(axes) != list(range(axes[0], axes[-1] + 1)):
        outer_axes = [i for i in range(len(shape)) if i not in axes]
        x = Transpose(name=tag(node, "gathered"), x=x, perm=(*outer_axes, *axes))
        outer, inner = math.prod(shape[i] for i in outer_axes), 1
    else:
        outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
    reduced = math.prod(shape[i] for i in axes)
    x = Reshape(name=tag(node, "middle"), x=x, shape=(outer, reduced, inner))
    changes: dict[str, Any] = {"x": x, "axes": (1,), "keepdims": True}
    core = replace(node, name=tag(node, "reduced"), **changes)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


lowering_rules.update(dict.fromkeys((ReduceMean, ReduceSum, ReduceMax, ReduceMin), lower_reduce))


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
    length = const(node.type.shape[-1])
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
    image = Reshape(
        name=tag(node, "image"), x=squares, shape=(math.prod(shape[:-1]), 1, shape[-1], 1)
    )
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
    outer, inner = math.prod(shape[: node.axis]), math.prod(shape[node.axis + 1 :])
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
    rows, inner = node.x.type.shape[0], math.prod(node.x.type.shape[1:])
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
