"""Products that a model which comes quantized leaves in float, and why."""

from __future__ import annotations

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops import Dequantize, MatMul
from quantglow.ops.contraction import Contraction
from quantglow.quantization.qdq.movement import computes

MAX_NAMES = 3


def float_notes(graph: Graph) -> tuple[str, ...]:
    """A line for each reason: the number of such products, and the names of the first ones."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if (reason := reason_of(node)) is not None:
            found.setdefault(reason, []).append(node.name)
    return tuple(
        f"{len(names)} product(s) between roundings compute in float, {reason}: "
        f"{', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}"
        for reason, names in found.items()
    )


def reason_of(node: Node) -> str | None:
    """Why a product of quantized operands is not one of integers; None for all other nodes."""
    if not isinstance(node, Contraction | MatMul):
        return None
    x, y = node.operands[:2]
    for operand in (x, y):
        if isinstance(operand, Dequantize) and not computes(operand.x):
            kind = operand.x.type.dtype
            return f"their operands being {kind} with a zero point, or quantized by axis"
    if not isinstance(x, Dequantize):
        return None
    if isinstance(node, MatMul):
        return "one operand not being quantized"
    return (
        "their weights not being int8 with a scale for each output channel, around a zero point "
        "of int8 where they are in groups"
    )
