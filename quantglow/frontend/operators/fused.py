"""Importers of normalizations and activations of sums, as onnxruntime's tools fuse them."""

from __future__ import annotations

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.steps import Steps
from quantglow.graph.node import Node
from quantglow.ops.normalization import LayerNormalization
from quantglow.ops.unary import Gelu, Swish


@importer("RMSNormalization", "SimplifiedLayerNormalization")
def root_mean_square(call: Call) -> list[Node]:
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over all axes from ``axis`` on."""
    steps = Steps(call)
    return normalized(steps, call.node(0), 1)


@importer("com.microsoft.SkipSimplifiedLayerNormalization")
def root_mean_square_of_sum(call: Call) -> list[Node]:
    """The same of the sum of both operands and a bias; the sum where it is asked for."""
    steps = Steps(call)
    total = sum_of(steps, 3)
    if any(call.proto.output[1:3]):
        raise Unsupported("it gives its mean or its deviation")
    return [*normalized(steps, total, 2), total, total, total][:4]


def normalized(steps: Steps, x: Node, scale: int) -> list[Node]:
    """x over its root mean square, times the operand ``scale``; the factor where it is wanted."""
    call, rank = steps.call, x.type.rank
    axis = call.integer("axis", -1)
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is outside rank {rank}")
    axes = range(axis % rank, rank)
    unit, inverse = steps.unit_length(x, axes, call.number("epsilon", 1e-5))
    made = steps.named(steps.mul(unit, call.node(scale)))
    is_given = call.proto.op_type == "SimplifiedLayerNormalization" and steps.gives(1)
    return [made, steps.named(inverse, 1)] if is_given else [made]


@importer("com.microsoft.SkipLayerNormalization")
def layer_normalization_of_sum(call: Call) -> list[Node]:
    """LayerNormalization of the sum of both operands and a bias; the sum where it is asked for."""
    steps = Steps(call)
    total = sum_of(steps, 4)
    if any(call.proto.output[1:3]):
        raise Unsupported("it gives its mean or its deviation")
    made = LayerNormalization(
        name=call.result,
        x=total,
        gamma=call.weights(2, "gamma", lambda a: a),
        beta=call.weights(3, "beta", lambda a: a) if call.has(3) else None,
        epsilon=call.number("epsilon", 1e-12),
    )
    return [made, total, total, total][: len(call.proto.output)]


def sum_of(steps: Steps, bias: int) -> Node:
    """Both operands and the bias, where there is one: the fourth output."""
    call = steps.call
    total = steps.add(call.node(0), call.node(1))
    if call.has(bias):
        total = steps.add(total, call.node(bias))
    return steps.named(total, 3) if steps.gives(3) else total


@importer("com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def gelu(call: Call) -> Node:
    """Gelu of x, or of x plus a bias; FastGelu is the approximation with tanh."""
    steps = Steps(call)
    x = steps.add(call.node(0), call.node(1)) if call.has(1) else call.node(0)
    return Gelu(name=call.result, x=x, approximate=call.proto.op_type == "FastGelu")


@importer("com.microsoft.QuickGelu")
def quick_gelu(call: Call) -> Node:
    """``x * sigmoid(alpha * x)``"""
    return Swish(name=call.result, x=call.node(0), alpha=call.number("alpha", 1.702))
