"""``Gather`` and ``Scatter`` of rows, ``TopK`` by insertion.

No index leads outside of a view: one that would is kept for ``KernelCall.checked``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.loops import LoopAxis, Nest, emit_row
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import I1, I64, Operand, Value, vector
from quantglow.ir.ops import Gather, Scatter, TopK
from quantglow.ir.program.program import BufferKind, Compute, View
from quantglow.ir.symbolic.size import Dim, Shape, decide, likely
from quantglow.ir.types import DType

Combine = Callable[[Value, Value, int], Value]
"""(old, new, lanes) -> the value to store."""


def _byte_strides(view: View) -> Shape:
    return tuple(s * view.type.dtype.nbytes for s in view.strides)


def load_index(b: Builder, view: View, pointer: Value, position: Value) -> Value:
    """An element of a vector of indices as i64."""
    element = ELEMENTS[view.type.dtype]
    raw = b.load(element, b.at(pointer, b.mul(position, _byte_strides(view)[0])))
    return raw if element == I64 else b.cast("sext", element, raw, I64)


def from_the_end(b: Builder, index: Value, size: Dim) -> tuple[Value, Value]:
    """An index counted from the begin, and whether it is out of range."""
    negative = b.compare("slt", I64, index, "0")
    moved = b.op("add", I64, index, str(size))
    position = b.select(I64, negative, moved, index)
    return position, b.compare("uge", I64, position, str(size))


@emits(Gather)
def emit_gather(step: Compute, target: Target) -> KernelCall:
    """A work item copies one row: [outer, rows, inner] at [n] to [outer, n, inner]."""
    x, indices = step.inputs
    outer, count, inner = step.output.shape
    rows = x.shape[1]
    b = Builder(index=target.isa.index)
    result, source, chosen, outside = b.kernel(4)
    copy = _RowCopy(b, target, x.type.dtype, inner)
    outer_strides = (_byte_strides(step.output), _byte_strides(x))
    with b.loop("%begin", "%end") as item:
        block, position = b.divide(item, count) if decide(outer > 1) else ("0", item)
        model_index = load_index(b, indices, chosen, position)
        index, is_outside = from_the_end(b, model_index, rows)
        with b.when(is_outside):
            b.store(I64, model_index, outside)
        index = b.as_index(I64, b.select(I64, is_outside, "0", index))
        to, at = (
            b.at(b.at(pointer, b.mul(block, strides[0])), b.mul(row, strides[1]))
            for pointer, strides, row in zip(
                (result, source), outer_strides, (position, index), strict=True
            )
        )
        copy.emit(to, at)
    work = likely(outer * count) * (4 + likely(inner) / 8)
    pointers = (step.output, x, indices)
    return KernelCall(b.finish(), pointers, outer * count, work, "gather", checked=True)


@dataclass
class _RowCopy:
    """Code that moves a dense row, perhaps combined with its old content."""

    b: Builder
    target: Target
    dtype: DType
    size: Dim
    combine: Combine | None = None

    def emit(self, to: Value, source: Value) -> None:
        nbytes = self.dtype.nbytes
        lanes = vectors.narrower(self.target.f32_lanes, self.size)
        nest = Nest((), LoopAxis(self.size, (nbytes, nbytes)), lanes, 2)
        emit_row(self.b, self.target, nest, (to, source), self._pieces)

    def _pieces(self, pointers: Sequence[Value], group: Sequence[Piece]) -> None:
        b, element = self.b, ELEMENTS[self.dtype]
        for piece in vectors.split_masked(group):
            to, source = (b.at(p, piece.start * self.dtype.nbytes) for p in pointers)
            value = vectors.load(b, element, piece, source)
            if self.combine is not None:
                value = self.combine(vectors.load(b, element, piece, to), value, piece.lanes)
            vectors.store(b, element, piece, value, to)


@emits(Scatter)
def emit_scatter(step: Compute, target: Target) -> KernelCall:
    """Updates have an order, so one work item does all: x first, which may be the result itself.
    A state is its own result, and x stays where it is."""
    op = step.op
    assert isinstance(op, Scatter)
    x, indices, updates = step.inputs
    rows, inner = step.output.shape
    b = Builder(index=target.isa.index)
    result, source, chosen, new, outside = b.kernel(5)
    to_stride, x_stride = _byte_strides(step.output)[0], _byte_strides(x)[0]
    if not (x.buffer.kind is BufferKind.STATE and x.buffer is step.output.buffer):
        with b.loop(0, rows) as row:
            to, at = b.at(result, b.mul(row, to_stride)), b.at(source, b.mul(row, x_stride))
            _RowCopy(b, target, x.type.dtype, inner).emit(to, at)
    combine = _combination(b, op.reduction, x.type.dtype)
    with b.loop(0, indices.shape[0]) as position:
        model_index = load_index(b, indices, chosen, position)
        index, is_outside = from_the_end(b, model_index, rows)
        with b.when(is_outside):
            b.store(I64, model_index, outside)
        with b.when(b.op("xor", I1, is_outside, "true")):
            at = b.at(new, b.mul(position, _byte_strides(updates)[0]))
            to = b.at(result, b.mul(b.as_index(I64, index), to_stride))
            _RowCopy(b, target, x.type.dtype, inner, combine).emit(to, at)
    work = likely(op.type.size + updates.type.size)
    pointers = (step.output, x, indices, updates)
    return KernelCall(b.finish(), pointers, 1, work, "scatter", checked=True)


def _combination(b: Builder, reduction: str, dtype: DType) -> Combine | None:
    element, prefix = ELEMENTS[dtype], "f" if dtype.is_float else ""
    if reduction in ("max", "min"):
        extreme = vectors.maximum if reduction == "max" else vectors.minimum
        return lambda old, new, lanes: extreme(b, lanes, dtype, old, new)
    if dtype is DType.BOOL and reduction in ("add", "mul"):
        name = "or" if reduction == "add" else "and"
        return lambda old, new, lanes: b.op(name, vector(lanes, element), old, new)
    if reduction in ("add", "mul"):
        return lambda old, new, lanes: b.op(prefix + reduction, vector(lanes, element), old, new)
    return None


@emits(TopK)
def emit_top_k(step: Compute, target: Target) -> KernelCall:
    """A work item is a row.  The result holds the best so far; each element that is better than
    the last of them moves in, and pushes the others down."""
    op = step.op
    assert isinstance(op, TopK)
    (x,) = step.inputs
    rows, length = x.shape
    b = Builder(index=target.isa.index)
    result, source = b.kernel(2)
    with b.loop("%begin", "%end") as row:
        to = b.at(result, b.mul(row, _byte_strides(step.output)[0]))
        at = b.at(source, b.mul(row, _byte_strides(x)[0]))
        best = _Best(b, x.type.dtype, op.largest, to, at)
        with b.loop(0, op.k) as index:
            b.store(I64, best.insert(b.as_long(index), index), best.slot(index))
        if decide(op.k < length):
            with b.loop(op.k, length) as index:
                last = b.load(I64, best.slot(str(op.k - 1)))
                long = b.as_long(index)
                with b.when(best.is_better(long, last)):
                    best.insert(long, str(op.k))
    return KernelCall(b.finish(), (step.output, x), rows, 4 * likely(rows * length), "topk")


@dataclass
class _Best:
    """Indices of the best elements of one row, in order, at ``to``."""

    b: Builder
    dtype: DType
    largest: bool
    to: Value
    source: Value

    def slot(self, position: Operand) -> Value:
        return self.b.at(self.to, self.b.mul(position, 8))

    def insert(self, index: Operand, filled: Operand) -> Value:
        """Put an index in its place among ``filled`` ones; the index that fell out at the end."""
        b = self.b
        loop = b.begin_while(filled, [(I64, index)])
        (carried,) = loop.carried
        slot = self.slot(loop.index)
        held = b.load(I64, slot)
        better = self.precedes(carried, held)
        b.store(I64, b.select(I64, better, carried, held), slot)
        (fallen,) = b.end_while(loop, [b.select(I64, better, held, carried)])
        return fallen

    def precedes(self, index: Value, other: Value) -> Value:
        """Whether one element comes before another: better, or equally good and earlier."""
        b = self.b
        no_worse = b.op("xor", I1, self.is_better(other, index), "true")
        earlier = b.op("and", I1, no_worse, b.compare("slt", I64, index, other))
        return b.op("or", I1, self.is_better(index, other), earlier)

    def is_better(self, index: Value, other: Value) -> Value:
        """Larger (or smaller); any number is better than NaN."""
        b, element = self.b, ELEMENTS[self.dtype]
        x, y = (
            b.load(element, b.at(self.source, b.mul(b.as_index(I64, i), self.dtype.nbytes)))
            for i in (index, other)
        )
        direction = "gt" if self.largest else "lt"
        if not self.dtype.is_float:
            sign = "u" if self.dtype is DType.U8 else "s"
            return b.compare(f"{sign}{direction}", element, x, y)
        better = b.compare(f"o{direction}", element, x, y)
        number = b.compare("ord", element, x, x)
        number = b.op("and", I1, number, b.compare("uno", element, y, y))
        return b.op("or", I1, better, number)
