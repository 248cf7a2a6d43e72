"""Execution in place: which operands of a primitive may lie where its result goes."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.ops import Conv, Elementwise, RowMap, Scatter, Table

IN_PLACE: dict[type[Node], tuple[str, ...]] = {
    Elementwise: ("args",),
    RowMap: ("args",),
    Table: ("x",),
    Conv: ("residual",),
    Scatter: ("x",),
}
"""Operands that may share the result's memory: read element by element, just before the write."""


def in_place_positions(op: Node) -> frozenset[int]:
    """Positions in ``op.operands`` at which the result may take over the operand's memory."""
    allowed = IN_PLACE.get(type(op), ())
    return frozenset(i for i, name in enumerate(op.operand_labels) if name in allowed)
