"""Importers of normalizations and softmax."""

from __future__ import annotations

import math

from quantglow.frontend.context import Call, Unsupported, importer
from quantglow.frontend.layout import channels_first, channels_last
from quantglow.graph.node import Node
from quantglow.ops.normalization import LRN, BatchNormalization, LogSoftmax, Softmax
from quantglow.ops.shape import Reshape, Transpose


@importer("BatchNormalization")
def batch_normalization(call: Call) -> Node:
    if call.integer("training_mode", 0):
        raise Unsupported("training_mode is set; export the model for inference")
    if not call.integer("spatial", 1):
        raise Unsupported("spatial = 0 normalizes each element on its own")
    x = channels_last(call, call.node(0), call.value_name(0))
    gamma, beta, mean, var = (call.weights(i, "f32", lambda a: a) for i in (1, 2, 3, 4))
    made = BatchNormalization(
        name=call.result,
        x=x,
        gamma=gamma,
        beta=beta,
        mean=mean,
        var=var,
        epsilon=call.number("epsilon", 1e-5),
    )
    return channels_first(call, made)


@importer("LRN")
def lrn(call: Call) -> Node:
    made = LRN(
        name=call.result,
        x=channels_last(call, call.node(0), call.value_name(0)),
        size=call.integer("size", 0),
        alpha=call.number("alpha", 1e-4),
        beta=call.number("beta", 0.75),
        bias=call.number("bias", 1.0),
    )
    return channels_first(call, made)


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
        return over_last_axis(call, x)
    return over_axis(call, x, axis) if call.opset >= 13 else over_rows(call, x, axis)


def over_last_axis(call: Call, x: Node) -> Node:
    made = Softmax if call.proto.op_type == "Softmax" else LogSoftmax
    return made(name=call.result, x=x)


def over_axis(call: Call, x: Node, axis: int) -> Node:
    """Swap the axis with the last one, and back."""
    perm = list(range(x.type.rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    moved = Transpose(name=call.derived("moved"), x=x, perm=tuple(perm))
    made = over_last_axis(call, moved)
    return Transpose(name=call.derived("back"), x=made, perm=tuple(perm))


def over_rows(call: Call, x: Node, axis: int) -> Node:
    """Flatten to rows of everything from ``axis`` on, and back."""
    shape = x.type.shape
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    flat = Reshape(name=call.derived("rows"), x=x, shape=rows)
    return Reshape(name=call.derived("shape"), x=over_last_axis(call, flat), shape=shape)
