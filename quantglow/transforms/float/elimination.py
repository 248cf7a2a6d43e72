"""Elimination of common subexpressions, identities and needless repetitions.

Equal operators on the same operands, and equal Constants, become one node.  An operator that
returns its operand goes.  Repetitions are left to the operator that reads them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node, operand_fields
from quantglow.ir.ops.binary import Add, Binary, Div, Mul, Pow, Sub
from quantglow.ir.ops.pooling import AveragePool, MaxPool, Reduce, ReduceMean
from quantglow.ir.ops.quantization import Rescale
from quantglow.ir.ops.resize import Resize
from quantglow.ir.ops.shape import Concat, Expand, Pad, Reshape, Slice, Transpose
from quantglow.ir.ops.unary import Clip
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import broadcast_shapes, decide, decide_equal, surely_equal
from quantglow.transforms.float.constant_folding import is_float, scalar_constant
from quantglow.transforms.float.layout import derive, is_identity
from quantglow.transforms.rewrite import Uses, rewrite_pass

PREFIX = 16
"""Elements of a Constant that go into its key; the rest is compared."""


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """f(x), f(x) -> f(x), read twice.  The first of equal nodes, in graph order, stays."""

    name: str = "eliminate-common-subexpressions"

    def __call__(self, graph: Graph) -> Graph:
        representatives = Representatives()
        return graph.rebuild(representatives.first)


@dataclass
class Representatives:
    """Nodes met so far, by what they compute."""

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    constants: dict[Hashable, list[Constant]] = field(default_factory=dict)

    def first(self, node: Node) -> Node:
        """The first node that computes the same."""
        if isinstance(node, Input):
            return node
        if isinstance(node, Constant):
            return self.first_constant(node)
        # Value numbering: operands were replaced by their first equals, so equal keys mean equal
        # values.
        key = (type(node), node.operands, _operand_layout(node), tuple(node.attributes().values()))
        return self.nodes.setdefault(key, node)

    def first_constant(self, node: Constant) -> Constant:
        start = node.value.reshape(-1)[:PREFIX].tobytes()
        same = self.constants.setdefault((node.type, start), [])
        for other in same:
            if other is node or _equal_bits(node, other):
                return other
        same.append(node)
        return node


def _operand_layout(node: Node) -> tuple[bool, ...]:
    """Presence of each optional operand."""
    return tuple([getattr(node, name) is not None for name in operand_fields(type(node))])


def _equal_bits(a: Constant, b: Constant) -> bool:
    """Whether two arrays of one type are the same, NaN and the sign of zero included."""
    return np.array_equal(a.value.reshape(-1).view(np.uint8), b.value.reshape(-1).view(np.uint8))


eliminate_common_subexpressions = EliminateCommonSubexpressions()


@rewrite_pass("eliminate-identity")
def eliminate_identity(node: Node, uses: Uses) -> Node | None:
    """f(x) -> x where f changes nothing: Reshape to the same shape, Pad by 0, x * 1, …"""
    if isinstance(node, Concat):
        return node.parts[0] if len(node.parts) == 1 else None
    x = node.operands[0] if node.operands else None
    if x is None:
        return None
    if isinstance(node, Reduce):
        return _reduction_of_ones(node)
    if isinstance(node, Binary):
        return _neutral(node)
    return x if x.type.surely_equals(node.type) and _changes_nothing(node) else None


def _changes_nothing(node: Node) -> bool:
    """Whether an op whose result has the type of its first operand returns that operand."""
    match node:
        case Reshape() | Expand() | Rescale() | Pad():
            return True
        case Transpose(perm=perm):
            return is_identity(perm)
        case Slice(steps=steps, sizes=sizes):
            return all(
                decide(step > 0) or decide(size <= 1)
                for step, size in zip(steps, sizes, strict=True)
            )
        case Clip(low=low, high=high):
            return low == -math.inf and high == math.inf
        case AveragePool() | MaxPool():
            return node.kernel == node.strides == (1, 1) and not has_padding(node.pads)
        case Resize(scales=scales):
            return scales == (1.0, 1.0)
    return False


def _reduction_of_ones(node: Reduce) -> Node | None:
    """A reduction over axes of size 1 only removes them."""
    if any(decide(node.x.type.shape[axis] != 1) for axis in node.axes):
        return None
    if isinstance(node, ReduceMean) and node.out is not None:
        return None
    if decide_equal(node.x.type.shape, node.type.shape):
        return node.x
    return Reshape(name=node.name, x=node.x, shape=node.type.shape)


def _neutral(node: Binary) -> Node | None:
    """x + 0, x - 0, x * 1, x / 1, x ** 1, in float and without bounds."""
    if node.out is not None or node.low != -math.inf or node.high != math.inf:
        return None
    operand, other = node.x, scalar_constant(node.y)
    if other is None and isinstance(node, Add | Mul):
        operand, other = node.y, scalar_constant(node.x)
    unit = 0.0 if isinstance(node, Add | Sub) else 1.0
    if other != unit or not isinstance(node, Add | Sub | Mul | Div | Pow):
        return None
    return operand if operand.type == node.type else None


@rewrite_pass("drop-expand")
def drop_expand(node: Node, uses: Uses) -> Node | None:
    """Binary(x, Expand(y)) -> Binary(x, y) where that repeats y as often; the same of a Constant
    that is equal along an axis
    """
    match node:
        case Binary(x=x, y=Expand(x=y)):
            shape = broadcast_shapes(x.type.shape, y.type.shape)
            return node.with_operands((x, y)) if surely_equal(shape, node.type.shape) else None
        case Binary(x=x, y=Constant() as c) if (y := _without_repetitions(c, x, uses)) is not c:
            return node.with_operands((x, y))
        case Binary(x=Constant() as c, y=y) if (x := _without_repetitions(c, y, uses)) is not c:
            return node.with_operands((x, y))
    return None


def _without_repetitions(c: Constant, other: Node, uses: Uses) -> Constant:
    """A float Constant, once along each axis along which it is equal and the other operand as long.

    Operators that look for a number or for values of channels find them at any batch: that of one
    sample may lack the axis of samples, so that other axes repeat the Constant.
    """
    value, rank = c.value, c.type.rank
    if not is_float(c) or rank > other.type.rank:
        return c
    for axis, size in enumerate(c.type.fixed_shape):
        if size < 2 or not surely_equal((size,), (other.type.shape[axis - rank],)):
            continue
        first = value.take([0], axis)
        if bool((value == first).all()) and bool((np.signbit(value) == np.signbit(first)).all()):
            value = first
    if value is c.value:
        return c
    return replace(c, name=uses.fresh(derive(c.name, ":first")), value=value)
