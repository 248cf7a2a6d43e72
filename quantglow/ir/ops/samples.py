"""Conditions under which an operator treats the samples along axis 0 apart from each other.

Each gives the attributes that differ for a part of the batch, or None where samples may mix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.symbolic.size import decide

Changes = dict[str, Any] | None


def if_constant(shared: Iterable[Node | None]) -> Changes:
    """Changes if the operands that all samples read are Constants."""
    return {} if all(o is None or isinstance(o, Constant) for o in shared) else None


def if_aligned(node: Node) -> Changes:
    """Changes if Constants are equal for all samples and other operands keep samples on axis 0."""
    rank = node.type.rank
    for operand in node.operands:
        if not isinstance(operand, Constant):
            if operand.type.rank != rank:
                return None
        elif operand.type.rank == rank and decide(operand.type.shape[0] != 1):
            return None
    return {}


def if_per_tensor(node: Node) -> Changes:
    """Changes unless a tensor is quantized along axis 0, which would be that of samples."""
    kinds = [node.type, *(operand.type for operand in node.operands)]
    return None if any(k.quant is not None and k.quant.axis == 0 for k in kinds) else {}


def if_rows(node: Node) -> Changes:
    """Changes if rows are samples or parts of them."""
    return if_constant(node.operands[1:]) if node.type.rank > 1 else None
