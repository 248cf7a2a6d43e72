"""Constant folding, of whole values and of parts whose sizes are free.

At one shape a part is a Constant itself, and ``fold_constants`` computes with it.  Where its size
is free, ``fold_parts_of_constants`` puts the whole Constant in its place, and cuts the result: a
position table is looked up and added up once, whatever length a sentence has.

The functions behind these two read Constants for other passes: scalars, biases, weights, values by
channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from quantglow.ir.graph.node import Constant, Node, may_change
from quantglow.ir.ops.binary import Add, Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import Conv
from quantglow.ir.ops.external import External
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.loop import Loop
from quantglow.ir.ops.native import computing_with
from quantglow.ir.ops.primitives import Elementwise
from quantglow.ir.ops.quantization import Dequantize
from quantglow.ir.ops.shape import Expand, Reshape, Slice
from quantglow.ir.ops.unary import Unary
from quantglow.ir.ops.work import count_work
from quantglow.ir.symbolic.size import Dim, decide, decide_equal, decide_max, prod, surely_equal
from quantglow.support.arrays import Array
from quantglow.transforms.float.layout import derive
from quantglow.transforms.rewrite import Uses, decline, rewrite_pass

GROWTH_NBYTES = 1 << 20
"""A folded value may be larger than its operands only up to this size (Expand, Pad, Resize)."""


MOST_WORK = 2 * 10**10
"""A value that takes longer to compute stays computed: about a second, see ``count_work``."""

Cut = tuple[Dim, Dim, Dim]
"""Start, size and step along an axis."""


@rewrite_pass("fold-constants")
def fold_constants(node: Node, uses: Uses) -> Node | None:
    """f(Constant, …) -> Constant, unless that would make the program much larger"""
    operands = node.operands
    if isinstance(node, External | Loop):  # it may draw random numbers, or never end
        return None
    if not operands or not all(isinstance(o, Constant) for o in operands):
        return None
    if isinstance(node, Dequantize):
        return decline(node, "it has the integers of the model")
    if node.has_free_sizes:
        return decline(node, "its value depends on free dimensions")
    if _grows(node):
        if (rows := _gather_once(node, uses)) is not None:
            return rows
        return decline(node, f"its value has {node.type.nbytes} bytes, more than its operands")
    if decide(count_work(node) > MOST_WORK):
        return decline(node, "its value takes too much work")
    values = [o.value for o in operands if isinstance(o, Constant)]
    with computing_with(None):  # sums of native code have another order, and one model one graph
        value = np.array(node.evaluate(*values), order="C")
    element = node.type.element if node.type.quant else None
    return Constant(name=node.name, value=value, element=element)


def _gather_once(node: Node, uses: Uses) -> Node | None:
    """Gather(Constant, indices that repeat along axes) -> Expand(Gather(Constant, indices))"""
    if not (isinstance(node, Gather) and isinstance(node.indices, Constant)):
        return None
    indices = node.indices.value
    for axis, size in enumerate(indices.shape):
        first = indices.take([0], axis) if size > 1 else indices
        indices = first if (indices == first).all() else indices
    if indices.shape == node.indices.value.shape:
        return None
    once = Constant(name=uses.fresh(derive(node.name, ":once")), value=indices)
    rows = Gather(
        name=uses.fresh(derive(node.name, ":rows")), x=node.x, indices=once, axis=node.axis
    )
    return Expand(name=node.name, x=rows, shape=node.type.shape)


def _grows(node: Node) -> bool:
    """Whether the value is much larger than the operands."""
    read_nbytes = sum(operand.type.nbytes for operand in node.operands)
    return decide(node.type.nbytes > decide_max(GROWTH_NBYTES, read_nbytes))


@rewrite_pass("fold-parts-of-constants")
def fold_parts_of_constants(node: Node, uses: Uses) -> Node | None:
    """f(Slice(Constant)) -> Slice(f(Constant)) where the size is free"""
    if not node.has_free_sizes:
        return None
    match node:
        case Gather(x=Constant() as table, indices=Slice(x=Constant() as whole) as part):
            if not _are_inside(whole.value, table.type.shape[node.axis]):
                return decline(node, "indices that are not used lie outside of the table")
            cuts = {node.axis + axis: cut for axis, cut in _cuts(part)}
            return _cut(node, _rename(node, (table, part.x), uses), cuts)
        case Gather(x=Constant() as table, indices=Reshape() | Expand() as moved):
            inner = moved.x
            if not _is_part_of_constant(inner):
                return None  # its rows would have another name, which no decision is about
            if inner.type.rank != moved.type.rank and isinstance(moved, Expand):
                return None
            rows = _rename(node, (table, inner), uses)
            return type(moved)(name=node.name, x=rows, shape=node.type.shape)
        case Reshape(x=Slice(x=Constant()) as part):
            return _reshape(node, part, uses)
        case Add(x=Add(x=x, y=Slice() as first) as inner, y=Slice() as second) if _adds(inner):
            both = Add(name=uses.fresh(derive(node.name, ":y")), x=first, y=second)
            return Add(name=node.name, x=x, y=both) if _adds(node) and uses.single(inner) else None
        case Binary() | Unary() | Elementwise():
            return _of_parts(node, uses)
    return None


def _is_part_of_constant(node: Node) -> bool:
    """Whether a node moves elements of a Constant."""
    while isinstance(node, Slice | Reshape | Expand):
        node = node.x
    return isinstance(node, Constant)


def _are_inside(indices: Array, length: Dim) -> bool:
    least, most = int(indices.min(initial=0)), int(indices.max(initial=-1))
    return decide(least >= -length) and decide(most < length)


def _reshape(node: Reshape, part: Slice, uses: Uses) -> Node | None:
    """A part under a shape that keeps the axes that are cut."""
    sizes, cuts = list(node.shape), {}
    for axis, cut in _cuts(part):
        place = (part.type.shape[axis], prod(part.type.shape[:axis]))
        candidates = (
            target
            for target, size in enumerate(node.shape)
            if surely_equal((size, prod(node.shape[:target])), place)
        )
        target = next(candidates, None)
        if target is None:
            return None
        sizes[target], cuts[target] = part.x.type.shape[axis], cut
    name = uses.fresh(derive(node.name, ":whole"))
    return _cut(node, Reshape(name=name, x=part.x, shape=tuple(sizes)), cuts)


def _of_parts(node: Node, uses: Uses) -> Node | None:
    """An element-wise node on parts that are cut alike, and on Constants that are not."""
    rank = node.type.rank
    cuts = [_axis_cuts(operand, rank) for operand in node.operands]
    first = next(filter(None, cuts), None)
    if first is None or not all(isinstance(_whole(o), Constant) for o in node.operands):
        return None
    for operand, operand_cuts in zip(node.operands, cuts, strict=True):
        if not _are_alike(operand_cuts, first) and (operand_cuts or _varies(operand, first, rank)):
            return None
    return _cut(node, _rename(node, tuple(map(_whole, node.operands)), uses), first)


def _are_alike(one: Mapping[int, Cut], other: Mapping[int, Cut]) -> bool:
    return one.keys() == other.keys() and all(decide_equal(one[i], other[i]) for i in one)


def _whole(operand: Node) -> Node:
    """The Constant of which an operand is a part, or the operand itself."""
    return operand.x if isinstance(operand, Slice) else operand


def _axis_cuts(operand: Node, rank: int) -> dict[int, Cut]:
    """The cuts of a part by axes of its result, broadcast to a rank."""
    if not isinstance(operand, Slice):
        return {}
    return {rank - operand.type.rank + axis: cut for axis, cut in _cuts(operand)}


def _varies(operand: Node, axes: Iterable[int], rank: int) -> bool:
    """Whether an operand, broadcast to a rank, has several elements along one of the axes."""
    sizes = (*(1,) * (rank - operand.type.rank), *operand.type.shape)
    return any(decide(sizes[axis] != 1) for axis in axes)


def _cut(node: Node, whole: Node, cuts: dict[int, Cut]) -> Node | None:
    """The part of ``whole`` that has the value of ``node``."""
    if whole.has_free_sizes:
        return None
    if _grows(whole):
        return decline(node, f"the whole has {whole.type.nbytes} bytes, more than its operands")
    every = [cuts.get(axis, (0, size, 1)) for axis, size in enumerate(whole.type.shape)]
    starts, sizes, steps = zip(*every, strict=True)
    return Slice(name=node.name, x=whole, starts=starts, sizes=sizes, steps=steps)


def _cuts(part: Slice) -> Iterator[tuple[int, Cut]]:
    """The axes that are cut, and how."""
    for axis, cut in enumerate(zip(part.starts, part.sizes, part.steps, strict=True)):
        if not surely_equal(cut, (0, part.x.type.shape[axis], 1)):
            yield axis, cut


def _rename(node: Node, operands: tuple[Node, ...], uses: Uses) -> Node:
    return node.with_operands(operands, name=uses.fresh(derive(node.name, ":whole")))


def _adds(node: Add) -> bool:
    """Whether it is a plain sum of floats, one operand of which is a part of a Constant."""
    is_plain = node.out is None and node.low == -float("inf") and node.high == float("inf")
    part = node.y
    return is_plain and isinstance(part, Slice) and isinstance(part.x, Constant)


def float_constant(value: object, name: str, uses: Uses) -> Constant:
    """A float32 Constant under a name derived from ``name``."""
    return Constant(name=uses.fresh(name), value=np.asarray(value, np.float32, order="C"))


def is_infinite(node: Node) -> bool:
    """Whether the node is a Constant with an infinity."""
    return isinstance(node, Constant) and any(map(math.isinf, node.extremes))


def is_float(node: Node) -> bool:
    return node.type.dtype.is_float


def scalar_constant(node: Node) -> float | None:
    """The value of a float Constant with one element."""
    if isinstance(node, Constant) and node.type.size == 1 and is_float(node):
        return float(node.value.reshape(()))
    return None


def is_scalar(node: Node, value: float) -> bool:
    """Whether the node is a Constant close to ``value``: exporters write 1/sqrt(2) in many ways."""
    scalar = scalar_constant(node)
    return scalar is not None and close(scalar, value)


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * abs(b)


def channel_values(node: Node, channels: Dim, rank: int) -> Array | None:
    """A Constant that varies at most along the last axis, as an array [channels]."""
    if not isinstance(node, Constant) or not is_float(node) or node.type.rank > rank:
        return None
    if node.type.size == 1:
        return np.broadcast_to(node.value.reshape(-1), (int(channels),))
    if node.type.shape[-1] == node.type.size and decide(node.type.size == channels):
        return np.asarray(node.value.reshape(-1))
    return None


def absorbs(node: Node, reader: Node, uses: Uses) -> bool:
    """Whether arithmetic of ``reader`` on the result can go into weights and bias; else it declined
    if the node is a contraction."""
    reason = _obstacle(node, uses) if isinstance(node, Contraction) else None
    if reason:
        decline(reader, f"{node.name!r} {reason}")
    return reason == ""


def _obstacle(node: Contraction, uses: Uses) -> str:
    """The reason why weights and bias cannot take arithmetic on the result; empty if they can."""
    if not uses.single(node):
        return "has other readers"
    if not is_float(node.x):
        return "sums integers"
    if not may_change(node.w) or not isinstance(node.b, Constant | None):
        return "has weights or a bias that are no constants"
    if isinstance(node, Conv) and node.residual is not None:
        return "adds a residual"
    return "" if node.is_bare else "has bounds or an activation already"


def bias_array(node: Contraction) -> Array:
    """The bias, zeros where there is none."""
    if isinstance(node.b, Constant):
        return node.b.value
    return np.zeros(node.w.type.shape[-1], np.float32)


def weight_array(node: Contraction) -> Array:
    assert isinstance(node.w, Constant)
    return node.w.value
