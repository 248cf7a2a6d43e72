"""Work of operators, estimated from types alone."""

from __future__ import annotations

import math

from quantglow.graph.node import Node
from quantglow.ops.contraction import Contraction
from quantglow.ops.convolution import ConvTranspose, MatMul
from quantglow.ops.weight_groups import GroupedMatMul

ELEMENT_WORK = 20
"""Multiply-accumulates of a matrix product in the time in which NumPy moves one element."""


def macs_of(node: Node) -> int:
    """Multiply-accumulates of products; 0 for other operators."""
    if isinstance(node, MatMul):
        return node.type.size * node.x.type.shape[-1]
    if isinstance(node, GroupedMatMul):
        return node.type.size * node.depth
    if not isinstance(node, Contraction):
        return 0
    if isinstance(node, ConvTranspose):
        return node.x.type.size * (node.w.type.size // max(node.x.type.shape[-1], 1))
    return node.type.size * (node.w.type.size // max(node.w.type.shape[-1], 1))


def evaluated_macs(node: Node) -> int:
    """``macs_of``, and those with the zeros that ``ConvTranspose.evaluate`` spreads x with."""
    return macs_of(node) * math.prod(node.strides if isinstance(node, ConvTranspose) else ())


def work_of(node: Node) -> int:
    """Time of ``Node.evaluate``, in multiply-accumulates of a matrix product."""
    taps = math.prod(getattr(node, "kernel", ()))
    moved = node.type.size * taps + sum(operand.type.size for operand in node.operands)
    return evaluated_macs(node) + ELEMENT_WORK * moved
