"""Execution in place: which operands of a primitive may lie where its result goes."""

from __future__ import annotations

from quantglow.graph.node import Node
from quantglow.ops import Conv
from quantglow.ops.arithmetic import is_integer
from quantglow.symbolic.size import is_free


def in_place_positions(op: Node) -> frozenset[int]:
    """Positions in ``op.operands`` at which the result may take over the operand's memory."""
    if isinstance(op, Conv) and repeats_results(op):
        return frozenset()
    return frozenset(i for i, name in enumerate(op.operand_labels) if name in op.in_place)


def repeats_results(conv: Conv) -> bool:
    """Whether kernels may compute some results twice, and need the residual again: the ends of rows
    of a free length, and rows and channels of a depthwise convolution of integers."""
    return is_free(conv.type.size) or (conv.depthwise and is_integer(conv.x.type))
