"""Reshape, Concat and Slice: merged, simplified, moved past element-wise operators."""

from __future__ import annotations

from dataclasses import replace

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.quantization import Dequantize, Quantize, Rescale, Table
from quantglow.ir.ops.shape import Concat, Reshape, Slice
from quantglow.ir.ops.unary import Unary
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal
from quantglow.transforms.float.constant_folding import scalar_constant
from quantglow.transforms.float.layout import (
    behind_moves,
    derive,
    move_alike,
    per_axis,
    reshape,
)
from quantglow.transforms.rewrite import Uses, rewrite_pass


@rewrite_pass("merge-reshapes")
def merge_reshapes(node: Node, uses: Uses) -> Node | None:
    """Reshape(Reshape(x)) -> Reshape(x), or x if it has the shape"""
    match node:
        case Reshape(x=Reshape(x=x)):
            return x if decide_equal(x.type.shape, node.shape) else replace(node, x=x)
    return None


@rewrite_pass("sink-reshape")
def sink_reshape(node: Node, uses: Uses) -> Node | None:
    """f(Reshape(x)) -> Reshape(f(x)) for element-wise f, Constants reshaped along"""
    inner = _above_reshape(node, uses)
    if inner is None:
        return None
    return Reshape(name=uses.fresh(derive(node.name, ":r")), x=inner, shape=node.type.shape)


def _above_reshape(node: Node, uses: Uses) -> Node | None:
    """The element-wise node on operands without the Reshape."""
    match node:
        case Unary() | Quantize() | Dequantize() | Rescale() | Table():
            x, *others = node.operands
            if isinstance(x, Reshape) and not per_axis(x) and not per_axis(node):
                return node.with_operands((x.x, *others))
        case Binary(x=Reshape(x=x) as left, y=Reshape(x=y) as right):
            if decide_equal(x.type.shape, y.type.shape) and decide_equal(left.shape, right.shape):
                return node.with_operands((x, y))
        case Binary(x=Reshape(x=x) as moved, y=Constant() as c):
            other = _unreshape(c, moved, node.type.shape, uses)
            return None if other is None else node.with_operands((x, other))
        case Binary(x=Constant() as c, y=Reshape(x=y) as moved):
            other = _unreshape(c, moved, node.type.shape, uses)
            return None if other is None else node.with_operands((other, y))
    return None


def _unreshape(c: Constant, moved: Reshape, result: Shape, uses: Uses) -> Node | None:
    """The Constant as it broadcasts to the shape before the Reshape."""
    before, after = moved.x.type.shape, moved.shape
    if not decide_equal(after, result) or c.type.rank > len(after):
        return None
    if c.type.size == 1:
        return c if c.type.rank <= len(before) else reshape(c, (), uses)
    varies_last = c.type.shape[-1] == c.type.size
    if varies_last and before and decide(before[-1] == after[-1]):
        return reshape(c, c.type.shape[-1:], uses)
    long_before, long_after = ([d for d in dims if decide(d != 1)] for dims in (before, after))
    if not decide_equal(long_before, long_after):
        return None
    sizes = (*(1,) * (len(after) - c.type.rank), *c.type.shape)
    real = iter([size for size, d in zip(sizes, after, strict=True) if decide(d != 1)])
    return reshape(c, tuple(1 if decide(d == 1) else next(real) for d in before), uses)


@rewrite_pass("simplify-concat")
def simplify_concat(node: Node, uses: Uses) -> Node | None:
    """Concat(Concat(a, b), c) -> Concat(a, b, c); Concat(x[:k], x[k:]) -> x"""
    if not isinstance(node, Concat):
        return None
    parts: list[Node] = []
    for part in flatten(node, uses):
        joined = neighbors(parts[-1], part, node.axis, uses) if parts else None
        if joined is None:
            parts.append(part)
        else:
            parts[-1] = joined
    if tuple(parts) == node.parts:
        return None
    return parts[0] if len(parts) == 1 else replace(node, parts=tuple(parts))


def flatten(node: Concat, uses: Uses) -> list[Node]:
    """The parts, those of inner Concats that nobody else reads in their place."""
    parts: list[Node] = []
    for part in node.parts:
        inner = isinstance(part, Concat) and part.axis == node.axis and uses.single(part)
        parts.extend(part.operands if inner else (part,))
    return parts


def neighbors(a: Node, b: Node, axis: int, uses: Uses) -> Node | None:
    """Two Slices of step 1 that follow each other along ``axis``, as one (or as their source)."""
    if not (isinstance(a, Slice) and isinstance(b, Slice) and a.x is b.x):
        return None
    if {*a.steps, *b.steps} != {1}:
        return None
    if decide(a.starts[axis] + a.sizes[axis] != b.starts[axis]):
        return None
    if not decide_equal(_without(a.starts, axis), _without(b.starts, axis)):
        return None
    sizes = (*a.sizes[:axis], a.sizes[axis] + b.sizes[axis], *a.sizes[axis + 1 :])
    if decide_equal(sizes, a.x.type.shape):
        return a.x
    return replace(a, name=uses.fresh(derive(a.name, ":joined")), sizes=sizes)


def _without(values: Shape, axis: int) -> Shape:
    return values[:axis] + values[axis + 1 :]


@rewrite_pass("simplify-slice")
def simplify_slice(node: Node, uses: Uses) -> Node | None:
    """x[a:][b:] -> x[a+b:]; Concat(a, b)[part of a] -> a[part]"""
    match node:
        case Slice(x=Slice() as inner):
            return _slice_of_slice(node, inner)
        case Slice(x=Concat() as joined) if not node.type.is_empty:
            return _slice_of_part(node, joined)
    return None


def _slice_of_slice(outer: Slice, inner: Slice) -> Node:
    """Element i is ``x[inner.start + inner.step * (outer.start + outer.step * i)]``."""
    axes = range(len(outer.starts))
    starts = tuple(inner.starts[i] + inner.steps[i] * outer.starts[i] for i in axes)
    steps = tuple(inner.steps[i] * outer.steps[i] for i in axes)
    return replace(outer, x=inner.x, starts=starts, steps=steps)


def _slice_of_part(node: Slice, joined: Concat) -> Node | None:
    """The Slice on the only part it reads from."""
    axis = joined.axis
    ends = (
        node.starts[axis],
        node.starts[axis] + (node.sizes[axis] - 1) * node.steps[axis],
    )
    offset: Dim = 0
    for part in joined.parts:
        size = part.type.shape[axis]
        if all(decide(offset <= end) and decide(end < offset + size) for end in ends):
            starts = list(node.starts)
            starts[axis] -= offset
            return replace(node, x=part, starts=tuple(starts))
        offset += size
    return None


@rewrite_pass("raise-elements")
def raise_elements(node: Node, uses: Uses) -> Node | None:
    """f(Transpose(Reshape(Conv(x)))) -> Transpose(Reshape(f(Conv(x)))) for an element-wise f

    ``sink_transpose`` does so, too, but not for Transposes to channels-last: these climb, and may
    end below a Reshape of a layer's rows.
    """
    x = _only_operand(node)
    if x is None or per_axis(node) or not decide_equal(node.type.shape, x.type.shape):
        return None
    producer, moves = behind_moves(x, uses)
    if not moves or not isinstance(producer, Contraction):
        return None
    inner = node.with_operands(
        tuple(producer if o is x else _as_scalar(o, uses) for o in node.operands)
    )
    return move_alike(inner, moves, uses)


def _only_operand(node: Node) -> Node | None:
    """The operand of an element-wise operator whose others are scalar Constants."""
    if isinstance(node, Unary):
        return node.operands[0] if len(node.operands) == 1 else None
    if isinstance(node, Binary):
        others = [operand for operand in node.operands if scalar_constant(operand) is None]
        return others[0] if len(others) == 1 else None
    return None


def _as_scalar(node: Node, uses: Uses) -> Node:
    """A Constant of one element without axes."""
    assert isinstance(node, Constant)
    name = uses.fresh(derive(node.name, ":scalar"))
    return replace(node, name=name, value=node.value.reshape(())) if node.type.shape else node
