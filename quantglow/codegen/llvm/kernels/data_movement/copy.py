"""``copy`` and ``fill``: wide moves, interleaved channels, transposes; a value outside a box.

``copy`` transposes in square tiles.  The sizes and distances of ``fill`` are operands, so that
frames of images of all sizes share a kernel: what stays in the text is the value, how wide vectors
are, and which loops there are.  A row ends with a vector that may overlap the one before: both
write the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, instruction_rules
from quantglow.codegen.llvm.kernels.vector.access import (
    interleave_vectors,
    load_strided,
    store_strided,
    transpose_square,
)
from quantglow.codegen.llvm.kernels.vector.loops import (
    LoopAxis,
    Nest,
    advance,
    collapse_axes,
    item_pointers,
)
from quantglow.codegen.llvm.kernels.vector.vectors import (
    ELEMENTS,
    Piece,
    literal,
    narrower,
    split_masked,
)
from quantglow.codegen.llvm.values import Type, Value, bits_type, splat, vector
from quantglow.ir.program.program import Copy, Fill, View
from quantglow.ir.symbolic.size import (
    Dim,
    Size,
    careful,
    decide,
    decide_equal,
    likely,
    prod,
    surely_divides,
)

FILL_ITEMS = 16
"""Shares into which a fill is cut; every box gives each item its part."""

UNROLL = 4
MAX_PLANES = 4
ROW_NBYTES = 16
"""Width of a square tile of a transpose, in bytes."""
MOST_ROW_NBYTES = 32
"""The same for elements of four bytes, where vectors are that wide: more rows would spill."""


def emit_copy(step: Copy, target: Target) -> KernelCall:
    """``dst[...] = src``"""
    kind = step.dst.type
    axes = collapse_axes(kind.shape, (step.dst, step.src))
    itemsize = kind.dtype.nbytes
    if decide_equal(axes[-1].strides, (itemsize, itemsize)):
        axes, itemsize = _as_bytes(axes, itemsize), 1
    b = Builder(index=target.isa.index)
    pointers = b.kernel(2)
    items = _emit(b, target, axes, itemsize, pointers)
    return KernelCall(b.finish(), (step.dst, step.src), items, likely(kind.nbytes) / 4, "copy")


def _as_bytes(axes: Sequence[LoopAxis], itemsize: int) -> list[LoopAxis]:
    return [*axes[:-1], LoopAxis(axes[-1].size * itemsize, (1, 1))]


def _emit(
    b: Builder, target: Target, axes: list[LoopAxis], itemsize: int, pointers: Sequence[Value]
) -> Dim:
    """The best code for the strides; the number of work items."""
    element = bits_type(8 * itemsize)
    if _planar(axes, itemsize):
        return _interleave(b, target, axes, element, itemsize, pointers)
    tiled = _find_tiles(axes, itemsize, target)
    if tiled is not None:
        return _transpose(b, tiled[0], tiled[1], tiled[2], element, pointers)
    return _rows(b, target, axes, element, itemsize, pointers)


def _rows(
    b: Builder,
    target: Target,
    axes: Sequence[LoopAxis],
    element: Type,
    itemsize: int,
    pointers: Sequence[Value],
) -> Dim:
    row = axes[-1]
    nest = Nest(tuple(axes[:-1]), row, _lanes(target, itemsize, row.size), UNROLL)

    def body(at: Sequence[Value], group: Sequence[Piece]) -> None:
        values = [load_strided(b, element, itemsize, at[1], row.strides[1], p) for p in group]
        for piece, value in zip(group, values, strict=True):
            store_strided(b, element, itemsize, at[0], row.strides[0], piece, value)

    nest.emit(b, target, pointers, body)
    return nest.items


def _lanes(target: Target, itemsize: int, length: Dim) -> int:
    """Elements of a vector, fewer for short rows."""
    room = length if isinstance(length, Size) else max(length, 1)
    return narrower(target.vector_nbytes // itemsize, room)


def _planar(axes: Sequence[LoopAxis], itemsize: int) -> bool:
    """Few channels, side by side in the destination only."""
    if len(axes) < 2:
        return False
    pixels, channels = axes[-2:]
    few = (
        not isinstance(channels.size, Size)
        and 1 < channels.size <= MAX_PLANES
        and decide(channels.strides[0] == itemsize)
    )
    return few and decide_equal(pixels.strides, (channels.size * itemsize, itemsize))


def _interleave(
    b: Builder,
    target: Target,
    axes: Sequence[LoopAxis],
    element: Type,
    itemsize: int,
    pointers: Sequence[Value],
) -> Dim:
    pixels, channels = axes[-2:]
    count, lanes = int(channels.size), min(16, _lanes(target, itemsize, pixels.size))
    nest = Nest(tuple(axes[:-2]), pixels, lanes, 1)

    def body(at: Sequence[Value], group: Sequence[Piece]) -> None:
        for piece in split_masked(group):
            sources = [b.at(at[1], c * channels.strides[1]) for c in range(count)]
            planes = [load_strided(b, element, itemsize, s, itemsize, piece) for s in sources]
            mixed = interleave_vectors(b, element, piece.lanes, planes)
            kind = vector(piece.lanes * count, element)
            b.store(kind, mixed, b.at(at[0], piece.start * pixels.strides[0]))

    nest.emit(b, target, pointers, body)
    return nest.items


def _find_tiles(
    axes: Sequence[LoopAxis], itemsize: int, target: Target
) -> tuple[tuple[LoopAxis, ...], tuple[LoopAxis, LoopAxis], int] | None:
    """Outer axes; the axes dense in the source and in the destination; the size of the tiles."""
    across = axes[-1]
    if decide(across.strides[0] != itemsize):
        return None
    for position, along in enumerate(axes[:-1]):
        if decide(along.strides[1] != itemsize):
            continue
        widest = min(target.vector_nbytes, MOST_ROW_NBYTES) if itemsize == 4 else ROW_NBYTES
        largest = widest // itemsize
        size = narrower(largest, min(careful(along.size), careful(across.size)))
        if size >= 2 and decide(along.size >= size) and decide(across.size >= size):
            outer = tuple(a for i, a in enumerate(axes[:-1]) if i != position)
            return outer, (along, across), size
    return None


def _transpose(
    b: Builder,
    outer: tuple[LoopAxis, ...],
    tile: tuple[LoopAxis, LoopAxis],
    size: int,
    element: Type,
    pointers: Sequence[Value],
) -> Dim:
    """Square tiles; the last of a row or column overlaps its neighbor."""
    along, across = tile
    tiles = [-(-axis.size // size) for axis in tile]
    # One side of a transpose runs against the order of memory.  In squares as wide as a vector each
    # access, on either side, moves a whole row of the square.
    with b.loop("%begin", "%end") as item:
        outer_item, block = b.divide(item, tiles[0])
        at_item = item_pointers(b, outer_item, outer, pointers) if outer else list(pointers)
        at_block = advance(b, at_item, along, _overlapping(b, block, size, along.size))
        with b.loop(0, tiles[1]) as column:
            at = advance(b, at_block, across, _overlapping(b, column, size, across.size))
            _tile(b, tile, size, element, at)
    return tiles[0] * prod(axis.size for axis in outer)


def _overlapping(b: Builder, index: Value, size: int, length: Dim) -> Value:
    """The first element of a tile, moved back where the tile would not fit."""
    first = b.mul(index, size)
    if surely_divides(size, length):
        return first
    last = str(length - size)
    return b.select(b.index, b.compare("slt", b.index, first, last), first, last)


def _tile(
    b: Builder, tile: tuple[LoopAxis, LoopAxis], size: int, element: Type, at: Sequence[Value]
) -> None:
    along, across = tile
    kind = vector(size, element)
    rows = [b.load(kind, b.at(at[1], i * across.strides[1])) for i in range(size)]
    for i, row in enumerate(transpose_square(b, element, rows)):
        b.store(kind, row, b.at(at[0], i * along.strides[0]))


instruction_rules[Copy] = emit_copy


@dataclass
class FillKernel:
    """Generator of one fill kernel."""

    step: Fill
    target: Target
    b: Builder = field(init=False, repr=False)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.b = Builder(index=self.target.isa.index)

    def call(self) -> KernelCall:
        """``dst[outside interior] = value``"""
        self.base, self.table = self.b.kernel(2)
        elements: Dim = 0
        for box in self.step.boxes():
            elements += box.type.size
            if not box.type.is_empty:  # A frame around nothing has boxes of no height or width.
                self.box(box)
        items = FILL_ITEMS if decide(elements != 0) else 0
        nbytes = elements * self.step.dst.type.dtype.nbytes
        pointers = (self.step.dst, np.array(self.sizes or [0], np.int64))
        return KernelCall(self.b.finish(), pointers, items, likely(nbytes) / 8, "fill")

    def operand(self, value: Dim) -> Value:
        """A number that is no part of the text."""
        if isinstance(value, Size):
            return self.b.constant(value)
        self.sizes.append(value)
        return self.b.load_index(self.b.at(self.table, 8 * (len(self.sizes) - 1)))

    def box(self, box: View) -> None:
        """All rows of a box; its longest axis but the last is shared out."""
        b, itemsize = self.b, box.type.dtype.nbytes
        axes = collapse_axes(box.shape, (box,))
        first = b.at(self.base, self.operand((box.offset - self.step.dst.offset) * itemsize))
        outer, row = axes[:-1], axes[-1]
        if not decide_equal(row.strides, (itemsize,)):
            outer, row = axes, LoopAxis(1, (itemsize,))
        nbytes = row.size * itemsize
        most = min(max(careful(nbytes), itemsize), self.target.vector_nbytes)
        wide = 1 << (most.bit_length() - 1)
        if decide(nbytes < wide):
            raise AssertionError("the shape at hand is at least as wide")
        if not outer and decide(nbytes > wide):
            self.rows(first, [LoopAxis(nbytes // wide, (wide,))], wide, wide)
            last = b.at(first, self.operand(nbytes - wide))
            self.rows(last, [], wide, wide)
            return
        self.rows(first, sorted(outer, key=lambda axis: likely(axis.size)), nbytes, wide)

    def rows(self, first: Value, axes: list[LoopAxis], nbytes: Dim, wide: int) -> None:
        """Rows of ``nbytes`` along axes, in vectors of ``wide`` bytes."""
        b = self.b
        if not axes:
            with b.when(b.compare("eq", b.index, "%begin", "0")):
                self.row(first, nbytes, wide)
            return
        *whole, shared = axes
        self.nest(first, whole, shared, nbytes, wide)

    def nest(
        self, at: Value, whole: list[LoopAxis], shared: LoopAxis, nbytes: Dim, wide: int
    ) -> None:
        b, axis = self.b, whole[0] if whole else shared
        count, stride = self.operand(axis.size), self.operand(axis.strides[0])
        begin, end = ("0", count) if whole else self.share(count)
        with b.loop(begin, end) as index:
            moved = b.at(at, b.mul(index, stride))
            if whole:
                self.nest(moved, whole[1:], shared, nbytes, wide)
            else:
                self.row(moved, nbytes, wide)

    def share(self, count: Value) -> tuple[Value, Value]:
        """The part of ``count`` steps that belongs to the work items at hand."""
        b = self.b
        first, last = (b.divide(b.mul(i, count), FILL_ITEMS)[0] for i in ("%begin", "%end"))
        return first, last

    def row(self, at: Value, nbytes: Dim, wide: int) -> None:
        """One row; ``nbytes`` is at least ``wide``."""
        if decide(nbytes > wide):
            with self.b.loop(0, self.operand(nbytes // wide)) as index:
                self.store(self.b.at(at, self.b.mul(index, wide)), wide)
        if decide(nbytes == wide) or not surely_divides(wide, nbytes):
            is_wider = decide(nbytes > wide)
            self.store(self.b.at(at, self.operand(nbytes - wide)) if is_wider else at, wide)

    def store(self, at: Value, wide: int) -> None:
        dtype = self.step.dst.type.dtype
        element, lanes = ELEMENTS[dtype], wide // dtype.nbytes
        kind = vector(lanes, element)
        self.b.store(kind, splat(kind, literal(element, self.step.value)), at)


def emit_fill(step: Fill, target: Target) -> KernelCall:
    """``dst[outside interior] = value``"""
    return FillKernel(step, target).call()


instruction_rules[Fill] = emit_fill
