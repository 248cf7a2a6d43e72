"""Depthwise convolution of integers, by dot products of interleaved rows.

Four *rows* of an input of bytes are interleaved byte by byte, so that one dot-product lane
multiplies four rows of one channel; two rows of an int16 input, word by word.  An interleaved
column serves every tap of that column for several output rows at once, and neighboring output
columns share it.  Several output columns lie side by side if a chunk of channels is narrower than a
vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.kernel import KernelCall
from quantglow.codegen.llvm.kernels.contraction.geometry import ImageLayout
from quantglow.codegen.llvm.kernels.contraction.tiling import channel_order
from quantglow.codegen.llvm.kernels.depthwise.integer_plan import IntegerPlan, RowStack, interleave
from quantglow.codegen.llvm.kernels.depthwise.plan import Chunk
from quantglow.codegen.llvm.kernels.vector.access import load_partial, store_partial
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS
from quantglow.codegen.llvm.values import ABSENT, FLOAT, Operand, Type, Value, vector
from quantglow.ir.symbolic.size import (
    Dim,
    Size,
    decide,
    decide_max,
    decide_min,
    likely,
    surely_divides,
)

MANY_GROUPS = 24
"""Groups of rows that threads share evenly as they are; for fewer the channels are cut in two."""

Columns = dict[int, list[Value]]
"""Interleaved columns by their distance from the block's first column, in column taps."""


@dataclass
class IntegerDepthwise(IntegerPlan):
    """Generator of one integer depthwise kernel."""

    b: Builder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.b = Builder(index=self.target.isa.index)

    # -- the call

    def call(self) -> KernelCall:
        self.epilogue.check()
        groups = -(-self.y.height // self.rows.outputs)
        several = sum(chunk.count for chunk in self.chunks) > 1
        parts = 2 if several and likely(self.y.count * groups) < MANY_GROUPS else 1
        outputs = self.y.count * self.y.height * self.y.width * self.y.channels
        residual = self.epilogue.residual.operands(self.step)
        return KernelCall(
            code=partial(self.text, groups, parts),
            pointers=(self.step.inputs[0], self.step.output, *self.constants(), *residual),
            items=self.y.count * groups * parts,
            work=float(likely(outputs) * len(self.row_taps) * len(self.column_taps)),
            label=f"depthwise {self.rows.outputs}x{self.blocks.columns}",
            facts=f"{type(self.dot).__name__} {self.epilogue.facts}",
        )

    # -- loops

    def text(self, groups: Dim, parts: int) -> str:
        """Each group of rows is ``parts`` items, of some of the channels each."""
        b, run = self.b, 0
        added = self.epilogue.residual
        x, y, w, bias, scale, *more = b.kernel(5 + added.count)
        self.residual_params, residual = added.pointers(more)
        with b.loop("%begin", "%end") as item:
            rows, part = b.divide(item, parts)
            image, group = b.divide(rows, groups)
            top = self._top(group)
            x_row = self._row(x, self.x, image, top, self.conv.strides[0])
            y_row = self._row(y, self.y, image, top)
            r_row = self._row(residual, self.residual, image, top)
            for chunk in self.chunks:
                with b.loop(*self._share(chunk, part, parts)) as index:
                    number = b.add(index, run)
                    channel = b.add(b.mul(index, chunk.width), chunk.first)
                    per_channel = b.mul(number, self.vectors * self.target.vector_nbytes)
                    place = _ChunkPointers(
                        b.at(x_row, b.mul(channel, self.x.itemsize)),
                        b.at(y_row, b.mul(channel, self.y.itemsize)),
                        b.at(r_row, b.mul(channel, self.residual.itemsize))
                        if self.residual
                        else ABSENT,
                        b.at(w, b.mul(number, self.run_nbytes)),
                        self._bias(bias, per_channel),
                        self._vectors(scale, per_channel, self.epilogue.results.floats),
                    )
                    self.all_columns(chunk, place)
                run += chunk.count
        return b.finish()

    def _row(
        self, pointer: Value, of: ImageLayout | None, image: Value, row: Value, stride: int = 1
    ) -> Value:
        """The address of a row; ``ABSENT`` where there is no image."""
        if of is None:
            return ABSENT
        b = self.b
        down = b.mul(row, stride * of.row_pitch)
        return b.at(pointer, b.add(b.mul(image, of.batch_pitch), down))

    def _share(self, chunk: Chunk, part: Value, parts: int) -> tuple[Value | int, Value | int]:
        """The runs of a chunk that belong to a part: the first half, or the others."""
        if parts == 1:
            return 0, chunk.count
        half = chunk.count // 2
        return self.b.mul(part, half), self.b.add(self.b.mul(part, chunk.count - half), half)

    def _top(self, group: Value) -> Value:
        """The first output row of a group; the last group overlaps the one before."""
        b, last = self.b, self.y.height - self.rows.outputs
        start = b.mul(group, self.rows.outputs)
        if surely_divides(self.rows.outputs, self.y.height):
            return start
        return b.call(f"llvm.umin.{b.index}", b.index, (b.index, start), (b.index, str(last)))

    def _vectors(self, pointer: Value, offset: Operand, kind: Type) -> list[Value]:
        """The vectors of per-channel constants of a run, loaded once for all columns."""
        b, nbytes = self.b, self.target.vector_nbytes
        at = b.at(pointer, offset)
        return [b.load(kind, b.at(at, g * nbytes), align=4) for g in range(self.vectors)]

    def _bias(self, pointer: Value, offset: Value) -> list[list[Value]]:
        """For each output row the bias of a run."""
        b, count, nbytes = self.b, self.bias_rows, self.vectors * self.target.vector_nbytes
        at = b.at(pointer, b.mul(offset, count))
        rows = [self._vectors(at, str(row * nbytes), self.dot.kind) for row in range(count)]
        return rows if count > 1 else rows * self.rows.outputs

    def all_columns(self, chunk: Chunk, place: _ChunkPointers) -> None:
        """Every output column of a row group: a loop of blocks, single columns, an overlapping
        rest."""
        side, width = self.channels // chunk.width, self.y.width
        if isinstance(width, Size) and decide(width >= side * self.blocks.columns):
            self.free_columns(chunk, place, side)
            return
        whole, remainder = divmod(width, side)
        blocks, single = divmod(whole, self.blocks.columns)
        held: Columns = {}
        if decide(blocks != 0):
            held = self.block_loop(chunk, place, side, blocks)
        for index in range(int(single)):
            start = (blocks * self.blocks.columns + index) * side
            window = self.block(chunk, self._from(place, start), side, 1, side, held)
            passed = side * self.conv.strides[1]
            held = {t - passed: window[t] for t in window} if self.blocks.carry else {}
        if decide(remainder != 0):
            start, valid = decide_max(width - side, 0), int(decide_min(side, width))
            self.block(chunk, self._from(place, start), side, 1, valid, {})

    def free_columns(self, chunk: Chunk, place: _ChunkPointers, side: int) -> None:
        """Every output column of a row group of a free width: whole blocks, and one that ends
        where the row does."""
        b, width, columns = self.b, self.y.width, self.blocks.columns
        remainder = width % (side * columns)
        self.block_loop(chunk, place, side, width // (side * columns))
        if isinstance(remainder, Size) or remainder:
            with b.when(b.compare("ne", b.index, str(remainder), "0")):
                last = self._from(place, width - side * columns)
                self.block(chunk, last, side, columns, side, {})

    def _from(self, place: _ChunkPointers, column: Dim) -> _ChunkPointers:
        """The place of a column."""
        return self._columns_on(place, str(column), 1)

    def _columns_on(self, place: _ChunkPointers, turns: Operand, columns: int) -> _ChunkPointers:
        """The place so many times ``columns`` farther."""
        b, residual = self.b, place.residual
        x = b.mul(turns, columns * self.conv.strides[1] * self.x.column_pitch)
        y = b.mul(turns, columns * self.y.column_pitch)
        if self.residual is not None:
            residual = b.at(residual, b.mul(turns, columns * self.residual.column_pitch))
        x, y = (b.opaque(b.at(*each)) for each in ((place.x, x), (place.y, y)))
        return replace(place, x=x, y=y, residual=residual)

    def block_loop(self, chunk: Chunk, place: _ChunkPointers, side: int, blocks: Dim) -> Columns:
        """Whole blocks from the left; interleaved columns pass from one to the next, and after
        the last."""
        b, columns = self.b, self.blocks.columns * side
        advance = columns * self.conv.strides[1]
        carried = self._carried_columns(side)
        first = [
            self.interleaved(chunk, place.x, t - advance, side, range(self.vectors))
            for t in carried
        ]
        values = [v for column in first for v in column]
        loop = b.begin_loop(blocks, [(self.dot.bytes_kind, v) for v in values])
        moved = self._columns_on(place, loop.index, columns)
        size = self.vectors * len(self.rows.stacks)
        held = {t - advance: loop.carried[i * size : (i + 1) * size] for i, t in enumerate(carried)}
        window = self.block(chunk, moved, side, self.blocks.columns, side, held)
        b.end_loop(loop, [v for t in carried for v in window[t]])
        return {t - advance: window[t] for t in carried}

    def _carried_columns(self, side: int) -> list[int]:
        """Columns of a block that the next one finds in registers."""
        if not self.blocks.carry:
            return []
        return self.side_taps(side).shared(self.blocks.columns)

    # -- one block

    def block(
        self,
        chunk: Chunk,
        place: _ChunkPointers,
        side: int,
        columns: int,
        valid: int,
        held: Columns,
    ) -> Columns:
        """``columns`` neighboring groups of ``side`` output pixels, of each ``valid`` stored.

        ``held`` are columns interleaved before; returns the columns of the last pass.
        """
        b, window = self.b, dict(held)
        pixels = [(c, r) for c in range(columns) for r in range(self.rows.outputs)]
        results: dict[tuple[int, int], list[Value]] = {pixel: [] for pixel in pixels}
        for vectors in self.blocks.passes:
            window = dict(held)
            # Each pass reads its rows anew: kept from the pass before, they would spill.
            opaque = replace(place, x=b.opaque(place.x))
            sums = self.sums(chunk, opaque, side, columns, vectors, window)
            for column, row in pixels:
                residual = self.residual_at(chunk, place, row, column * side, valid)
                addends = [residual[g] for g in vectors]
                results[column, row] += self._results(place, vectors, sums[column][row], addends)
        store = self.store_reals if self.conv.out is None else self.store
        for column, row in pixels:
            pixel = self.y.pixel(b, place.y, row, column * side)
            store(chunk, results[column, row], pixel, side, valid)
        return window

    def sums(
        self,
        chunk: Chunk,
        place: _ChunkPointers,
        side: int,
        columns: int,
        vectors: tuple[int, ...],
        window: Columns,
    ) -> list[list[list[Value]]]:
        """Sums [column][output row][vector] over all taps; ``window`` gathers the columns."""
        b, dot = self.b, self.dot
        start = [[of_row[g] for g in vectors] for of_row in place.bias]
        sums = [[list(of_row) for of_row in start] for _ in range(columns)]
        step = side * self.conv.strides[1]
        for number, tap in enumerate(self.column_taps):
            sources = [tap + column * step for column in range(columns)]
            for source in sources:
                if source not in window:
                    window[source] = self.interleaved(chunk, place.x, source, side, vectors)
            operands = [[dot.to_operand(b, v) for v in window[s]] for s in sources]
            pair = number * self.pairs
            for row, stacks in enumerate(self.uses):
                for stack in stacks:
                    places = self.tap_places(row, stack)
                    for i, g in enumerate(vectors):
                        position = (pair * self.vectors + g) * dot.weight_nbytes
                        weights = dot.select_parts(dot.weights(b, place.w, position), places)
                        for column in range(columns):
                            whole = operands[column][stack * len(vectors) + i]
                            operand, old = dot.select_parts(whole, places), sums[column][row][i]
                            sums[column][row][i] = dot.accumulate(b, old, operand, weights)
                    pair += 1
        return sums

    def residual_at(
        self, chunk: Chunk, place: _ChunkPointers, row: int, column: int, valid: int
    ) -> Sequence[Value | None]:
        """For each vector of a run the residual of ``valid`` side-by-side pixels, in steps of the
        float32 sum or reals."""
        if self.residual is None or self.conv.residual is None:
            return [None] * self.vectors
        b, width = self.b, chunk.width
        element = ELEMENTS[self.conv.residual.type.dtype]
        parts = []
        for side in range(self.channels // width):
            source = column + min(side, valid - 1)
            pixel = self.residual.pixel(b, place.residual, row, source)
            parts.append(load_partial(b, self.target, element, width, chunk.valid, pixel))
        data = self._side_by_side(parts, width, element)
        order = channel_order(self.target.isa, self.vectors, self.vectors)
        return self.epilogue.residual.steps(b, data, order, self.residual_params)

    def _results(
        self,
        place: _ChunkPointers,
        vectors: tuple[int, ...],
        sums: list[Value],
        residual: Sequence[Value | None],
    ) -> list[Value]:
        """Finished sums as 16-bit words, or reals."""
        b = self.b
        values = [
            self.epilogue.values(b, total, place.scale[g], added)
            for total, g, added in zip(sums, vectors, residual, strict=True)
        ]
        results = self.epilogue.results
        if self.conv.out is None:
            return [results.limited_floats(b, value) for value in values]
        return [results.packed_words(b, values[i : i + 2]) for i in range(0, len(values), 2)]

    def interleaved(
        self, chunk: Chunk, x: Value, column: int, side: int, vectors: Sequence[int]
    ) -> list[Value]:
        """Input column ``column`` (of each side-by-side pixel): for each stack the wanted of its
        vectors, each lane the elements of its rows of one channel."""
        vectors_of_rows: list[Value] = []
        for number, rows in enumerate(self.rows.stacks):
            loaded = [self.row_bytes(chunk, x, r, column, side) for r in rows]
            order = [0 if r is None else rows.index(r) for r in self.rows.placed(number)]
            stack = RowStack(loaded, self.vectors, order)
            vectors_of_rows += interleave(self.b, self.target.isa, stack, vectors)
        return vectors_of_rows

    def row_bytes(self, chunk: Chunk, x: Value, row: int, column: int, side: int) -> Value:
        """One row of each side-by-side pixel, ``chunk.width`` elements each."""
        b, width, element = self.b, chunk.width, ELEMENTS[self.conv.x.type.dtype]
        last = self.y.width - 1
        parts = []
        for pixel in range(side):
            source = column + decide_min(pixel, last) * self.conv.strides[1]
            parts.append(b.load(vector(width, element), self.x.pixel(b, x, row, source)))
        return self._side_by_side(parts, width, element)

    def _side_by_side(self, parts: list[Value], width: int, element: Type) -> Value:
        """Vectors of ``width`` elements as one."""
        while len(parts) > 1:
            kind, width = vector(width, element), width * 2
            joined = zip(parts[0::2], parts[1::2], strict=True)
            parts = [self.b.shuffle(kind, left, right, range(width)) for left, right in joined]
        return parts[0]

    def store(self, chunk: Chunk, words: list[Value], y: Value, side: int, valid: int) -> None:
        """Store each side-by-side pixel's results."""
        b, element = self.b, self.epilogue.results.element
        data, kind = (
            self.epilogue.results.joined_words(b, words),
            vector(side * chunk.width, element),
        )
        for pixel in range(valid):
            part = data
            if side > 1:
                lanes = range(pixel * chunk.width, (pixel + 1) * chunk.width)
                part = b.shuffle(kind, data, "poison", lanes)
            target = b.at(y, pixel * self.y.column_pitch)
            store_partial(b, self.target, element, chunk.width, chunk.valid, part, target)

    def store_reals(
        self, chunk: Chunk, reals: list[Value], y: Value, side: int, valid: int
    ) -> None:
        """``store`` of float results: vectors of them in the order of memory."""
        b, lanes, count = self.b, self.dot.lanes, self.channels
        whole = self._side_by_side(reals, lanes, FLOAT)
        places = np.argsort(channel_order(self.target.isa, self.vectors, self.vectors).reshape(-1))
        size = min(lanes, chunk.width)
        for pixel in range(valid):
            for first in range(0, chunk.valid, size):
                begin = pixel * chunk.width + first
                part_lanes = places[begin : begin + size].tolist()
                part = b.shuffle(vector(count, FLOAT), whole, "poison", part_lanes)
                target = b.at(y, pixel * self.y.column_pitch + first * self.y.itemsize)
                left = min(chunk.valid - first, size)
                store_partial(b, self.target, FLOAT, size, left, part, target)


@dataclass(frozen=True)
class _ChunkPointers:
    """Pointers to what a block reads and writes, empty where there is no residual, and its
    per-channel constants: for each output row its bias, and multipliers."""

    x: Value
    y: Value
    residual: Value
    w: Value
    bias: list[list[Value]]
    scale: list[Value]
