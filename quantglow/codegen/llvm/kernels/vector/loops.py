"""Loop nests over strided views, and folds of a row to one value.

Axes that are contiguous in every view are merged, leading axes become work items, the last axis is
a row that a body computes in vectors.  A fold has several accumulators of vectors, combined at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

from quantglow.codegen.llvm.builder import Builder, Index
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, narrower, pieces
from quantglow.codegen.llvm.values import Operand, Type, Value, f32, splat
from quantglow.ir.program.program import View
from quantglow.ir.symbolic.size import Dim, Shape, Size, decide, decide_equal, likely, prod

ENOUGH_ITEMS = 32
"""Number of work items from which on further axes become loops inside an item."""
SHORT = 4
"""Elements of a narrow vector, for the end of rows of a free length."""
BLOCK = 16
"""Steps of the vector loop in a work item, where a single row is split."""

Body = Callable[[Sequence[Value], Sequence[Piece]], None]
"""Compute pieces of a row; pointers address the element from which pieces count."""

UNROLL = 4
"""Accumulators that a loop keeps, to hide the latency of one."""
NARROWEST = 4
"""Lanes of the narrowest vector."""


@dataclass(frozen=True)
class LoopAxis:
    """``size`` elements; the stride in bytes in each view."""

    size: Dim
    strides: Shape


def collapse_axes(shape: Shape, views: Sequence[View]) -> list[LoopAxis]:
    """The axes of views broadcast to ``shape``, without axes of size 1, neighbors merged."""
    axes = merge_axes(broadcast_axes(shape, views))
    return axes or [LoopAxis(1, tuple(view.type.dtype.nbytes for view in views))]


def broadcast_axes(shape: Shape, views: Sequence[View]) -> list[LoopAxis]:
    """An axis for each dimension of views broadcast to ``shape``."""
    wide = [view.expanded(shape) for view in views]
    return [
        LoopAxis(size, tuple(v.strides[dim] * v.type.dtype.nbytes for v in wide))
        for dim, size in enumerate(shape)
    ]


def merge_axes(axes: Sequence[LoopAxis]) -> list[LoopAxis]:
    """Axes without those of size 1, neighbors that are contiguous in every view as one."""
    result: list[LoopAxis] = []
    for axis in axes:
        inner = tuple(stride * axis.size for stride in axis.strides)
        if decide(axis.size == 1):
            continue
        if result and decide_equal(result[-1].strides, inner):
            result[-1] = LoopAxis(result[-1].size * axis.size, axis.strides)
        else:
            result.append(axis)
    return result


@dataclass(frozen=True)
class Nest:
    """Outer axes around rows of ``row``, computed ``step`` elements at a time."""

    outer: tuple[LoopAxis, ...]
    row: LoopAxis
    lanes: int
    unroll: int

    @property
    def step(self) -> int:
        return self.lanes * self.unroll

    @property
    def block(self) -> int:
        """Elements of a work item when there is only one row."""
        return self.step * BLOCK

    @property
    def items(self) -> Dim:
        if not self.outer:
            return -(-self.row.size // self.block)
        return prod(axis.size for axis in self._item_axes())

    def _item_axes(self) -> tuple[LoopAxis, ...]:
        count = 1
        while (
            count < len(self.outer)
            and likely(prod(a.size for a in self.outer[:count])) < ENOUGH_ITEMS
        ):
            count += 1
        return self.outer[:count]

    def emit(
        self,
        b: Builder,
        target: Target,
        pointers: Sequence[Value],
        body: Body,
        items: tuple[Operand, Operand] = ("%begin", "%end"),
    ) -> None:
        """The loops over a range of work items; ``pointers`` are those of the views."""
        if not self.outer:
            self._blocks(b, target, pointers, body, *items)
            return
        split = len(self._item_axes())
        with b.loop(*items) as item:
            at_item = item_pointers(b, item, self.outer[:split], pointers)
            with loops(b, self.outer[split:], at_item) as at_row:
                emit_row(b, target, self, at_row, body)

    def _blocks(
        self,
        b: Builder,
        target: Target,
        pointers: Sequence[Value],
        body: Body,
        begin: Operand,
        end: Operand,
    ) -> None:
        """One row, split into items of ``block`` elements."""
        remainder = self.row.size % self.step
        whole = self.row.size - remainder
        if isinstance(whole, Size) or whole:
            first = b.mul(begin, self.block)
            last = b.mul(end, self.block)
            within = b.compare("slt", b.index, last, str(whole))
            limit = b.select(b.index, within, last, str(whole))
            with b.loop(first, limit, self.step) as index:
                body(advance(b, pointers, self.row, index), self._pieces(target, 0, self.step))
        if isinstance(remainder, Size):
            with b.when(b.compare("eq", b.index, end, str(self.items))):
                _free_remainder(b, target, self, pointers, body, whole)
        elif remainder:
            with b.when(b.compare("eq", b.index, end, str(self.items))):
                tail = advance(b, pointers, self.row, whole)
                body(tail, self._pieces(target, 0, remainder))

    def _pieces(self, target: Target, start: int, stop: int) -> list[Piece]:
        return list(pieces(target, start, stop, self.lanes))


def emit_row(b: Builder, target: Target, nest: Nest, pointers: Sequence[Value], body: Body) -> None:
    """A whole row: a loop over full steps, then the rest."""
    size, step = nest.row.size, nest.step
    if isinstance(size, Size):
        _free_row(b, target, nest, pointers, body)
        return
    whole = size - size % step if size >= 2 * step else 0
    if whole:
        with b.loop(0, whole, step) as index:
            body(advance(b, pointers, nest.row, index), list(pieces(target, 0, step, nest.lanes)))
    if whole < size:
        remainder = advance(b, pointers, nest.row, whole)
        body(remainder, list(pieces(target, 0, size - whole, nest.lanes)))


def _free_row(
    b: Builder, target: Target, nest: Nest, pointers: Sequence[Value], body: Body
) -> None:
    """A row of a free length: a loop over full steps, then the rest."""
    remainder = nest.row.size % nest.step
    whole = nest.row.size - remainder
    with b.loop(0, whole, nest.step) as index:
        body(advance(b, pointers, nest.row, index), list(pieces(target, 0, nest.step, nest.lanes)))
    if isinstance(remainder, Size):
        _free_remainder(b, target, nest, pointers, body, whole)
    elif remainder:
        body(
            advance(b, pointers, nest.row, str(whole)),
            list(pieces(target, 0, remainder, nest.lanes)),
        )


def _free_remainder(
    b: Builder,
    target: Target,
    nest: Nest,
    pointers: Sequence[Value],
    body: Body,
    begin: Dim,
) -> None:
    """The elements of a row from ``begin``, fewer than a step: in vectors, then narrower ones."""
    widths = [width for width in (nest.lanes, SHORT, 1) if width < nest.step or width == 1]
    for width in sorted({min(width, nest.lanes) for width in widths}, reverse=True):
        end = nest.row.size - nest.row.size % width
        with b.loop(str(begin), str(end), width) as index:
            body(advance(b, pointers, nest.row, index), list(pieces(target, 0, width, nest.lanes)))
        begin = end


def item_pointers(
    b: Builder, item: Value, axes: Sequence[LoopAxis], pointers: Sequence[Value]
) -> list[Value]:
    """Pointers at the position of a work item, from its number."""
    moved_to = list(pointers)
    for axis in reversed(axes[1:]):
        item, index = b.divide(item, axis.size)
        moved_to = advance(b, moved_to, axis, index)
    return advance(b, moved_to, axes[0], item) if axes else moved_to


@contextmanager
def loops(b: Builder, axes: Sequence[LoopAxis], pointers: Sequence[Value]) -> Iterator[list[Value]]:
    """Nested loops over axes."""
    if not axes:
        yield list(pointers)
        return
    with (
        b.loop(0, axes[0].size) as index,
        loops(b, axes[1:], advance(b, pointers, axes[0], index)) as inside,
    ):
        yield inside


def advance(b: Builder, pointers: Sequence[Value], axis: LoopAxis, index: Index) -> list[Value]:
    """Each pointer advanced by ``index`` elements of the axis."""

    def offset(stride: Dim) -> Index:
        if not isinstance(index, str):
            return index * stride
        return b.mul(index, stride) if decide(stride != 0) else 0

    offsets = {s: offset(s) for s in dict.fromkeys(axis.strides)}
    return [b.at(p, offsets[s]) for p, s in zip(pointers, axis.strides, strict=True)]


@dataclass(frozen=True)
class Combination:
    """An associative operation on lanes, with its neutral element."""

    kind: Callable[[int], Type]
    neutral: Callable[[int], Value]
    combine: Callable[[int, Value, Value], Value]


@dataclass(frozen=True)
class Fold(Combination):
    """A fold of a row.  ``load`` computes the lanes of a piece that counts from an index."""

    load: Callable[[Value | int, Piece], Value]


def fold_row(b: Builder, fold: Fold, lanes: int, length: Dim) -> Value:
    """The combination of all elements, a scalar; the neutral one if there are none."""
    if isinstance(length, Size):
        return _fold_free_row(b, fold, lanes, length)
    partials: list[Value] = []
    start = 0
    for unroll in (UNROLL, 1):
        step = lanes * unroll
        count = (length - start) // step
        if lanes > 1 and count:
            partials.append(_vectors(b, fold, lanes, unroll, start, count))
            start += count * step
    for piece in _tail_pieces(start, length, lanes):
        partials.append(across(b, fold, piece.lanes, fold.load(0, piece)))
    if not partials:
        return fold.neutral(1)
    return reduce(partial(fold.combine, 1), partials)


def _fold_free_row(b: Builder, fold: Fold, lanes: int, length: Size) -> Value:
    """``fold_row`` of a free length, in the same order."""
    total, width = _identity(fold, 1), lanes
    done: Dim = 0
    steps = [(lanes, UNROLL)] if lanes > 1 else []
    while width >= NARROWEST:
        steps.append((width, 1))
        width //= 2
    for width, unroll in steps:
        count = (length - done) // (width * unroll)
        start = [fold.neutral(width) if width == lanes else _identity(fold, width)] * unroll
        added = partial(_add_steps, b, fold, width, total, start, done, count)
        is_there = b.compare("sgt", b.index, str(count), "0")
        (total,) = b.if_so(is_there, [(fold.kind(1), total)], added)
        done += count * (width * unroll)
    return _loop(b, fold, 1, [total], done, length - done)


def _add_steps(
    b: Builder,
    fold: Fold,
    lanes: int,
    total: Value,
    start: Sequence[Value],
    done: Dim,
    count: Dim,
) -> list[Value]:
    """A total combined with ``_loop``."""
    return [fold.combine(1, total, _loop(b, fold, lanes, start, done, count))]


def _identity(fold: Fold, lanes: int) -> Value:
    """The neutral element that also keeps -0."""
    kind, neutral = fold.kind(lanes), fold.neutral(lanes)
    zero = splat(kind, f32(0.0))
    return splat(kind, f32(-0.0)) if neutral == zero else neutral


def _loop(
    b: Builder, fold: Fold, lanes: int, start: Sequence[Value], done: Dim, count: Dim
) -> Value:
    """``count`` steps of vectors from the element ``done`` on, combined into one element."""
    loop = b.begin_while(str(count), [(fold.kind(lanes), value) for value in start])
    index = b.add(b.mul(loop.index, lanes * len(start)), str(done))
    values = b.end_while(loop, _combined_step(fold, lanes, index, loop.carried))
    return _join_vectors(b, fold, lanes, values)


def _vectors(b: Builder, fold: Fold, lanes: int, unroll: int, start: int, count: int) -> Value:
    """``count`` steps of ``unroll`` vectors."""
    step = lanes * unroll
    loop = b.begin_loop(count, [(fold.kind(lanes), fold.neutral(lanes))] * unroll)
    index = b.add(b.mul(loop.index, step), start)
    values = b.end_loop(loop, _combined_step(fold, lanes, index, loop.carried))
    return _join_vectors(b, fold, lanes, values)


def _combined_step(
    fold: Fold, lanes: int, index: Value | int, totals: Sequence[Value]
) -> list[Value]:
    """Neighboring vectors combined with totals."""
    return [
        fold.combine(lanes, total, fold.load(index, Piece(i * lanes, lanes, lanes)))
        for i, total in enumerate(totals)
    ]


def _join_vectors(b: Builder, fold: Fold, lanes: int, values: list[Value]) -> Value:
    """Vectors combined into one element."""
    while len(values) > 1:
        half = len(values) // 2
        values = [fold.combine(lanes, values[i], values[half + i]) for i in range(half)]
    return across(b, fold, lanes, values[0])


def _tail_pieces(start: int, stop: int, lanes: int) -> Iterator[Piece]:
    """Narrower and narrower vectors, then scalars."""
    while start < stop:
        width = narrower(lanes, stop - start)
        yield Piece(start, width, width)
        start += width


def across(b: Builder, fold: Combination, lanes: int, value: Value) -> Value:
    """All lanes combined into one."""
    while lanes > 1:
        kind, lanes = fold.kind(lanes), lanes // 2
        if lanes == 1:
            halves = [b.extract(value, i) for i in range(2)]
        else:
            halves = [
                b.shuffle(kind, value, "poison", range(i * lanes, (i + 1) * lanes))
                for i in range(2)
            ]
        value = fold.combine(lanes, *halves)
    return value
