"""Execution in place: which operands of a primitive may lie where its result goes."""

from __future__ import annotations

from quantglow.graph.node import Node


def in_place_positions(op: Node) -> frozenset[int]:
    """Positions in ``op.operands`` at which the result may take over the operand's memory."""
    return frozenset(i for i, name in enumerate(op.operand_labels) if name in op.in_place)
