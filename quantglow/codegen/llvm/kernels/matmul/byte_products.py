"""Integer products of activations by dot products of four bytes.

With ``y = s + 128`` the sum of ``(x - zx) * (y - zy)`` is that of ``x * s``, corrected by a number
for each row and one for each column: ``(128 - zy) * sum(x)`` and ``zx * (K * (zy - 128) - sum(s))``
negated.  All of it wraps around alike, so the int32 result is exact where it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quantglow.codegen.llvm.builder import OpenLoop
from quantglow.codegen.llvm.isa.costs import StepCost
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.codegen.llvm.kernels.contraction.tiling import Tile
from quantglow.codegen.llvm.kernels.matmul.product import PANEL_NBYTES, PanelColumns
from quantglow.codegen.llvm.kernels.matmul.word_products import IntegerProduct
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import load_partial
from quantglow.codegen.llvm.values import I8, I32, Operand, Value, integer, splat, vector, zero
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, likely
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

_MOST_ROWS = {32: (0, 16, 12, 8, 6), 0: (0, 8, 5, 3, 2)}
"""By the least number of registers, then vectors of a panel: rows of a tile whose sums stay in
registers."""
_MOST_ADDRESSES = 8
"""Rows of a tile whose addresses stay in registers, where the distance of rows is free."""
_SIGN = "-128"


class ByteProduct(IntegerProduct):
    """A panel of y is packed once as groups of four rows; of x, four bytes of a row are broadcast
    where they lie."""

    @property
    def applies(self) -> bool:
        """Whether bytes are multiplied by bytes, on a target that multiplies them as they are."""
        x, y = self.op.x.type.dtype, self.op.y.type.dtype
        if x is not self.stored or y not in (DType.U8, DType.I8):
            return False
        return not self.dot.widen

    @property
    def stored(self) -> DType:
        """How the target stores int8 activations."""
        return DType.U8 if self.target.isa.unsigned_activations else DType.I8

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(self.stored)

    @property
    def steps(self) -> Dim:
        """Groups of four rows of y; the last one may hold fewer."""
        return -(-self.depth // STEP_NBYTES)

    @cached_property
    def fitting(self) -> int:
        """Vectors of columns of which a panel has not too many bytes."""
        return max(1, PANEL_NBYTES // (likely(self.steps) * self.target.vector_nbytes))

    @property
    def usual_panel(self) -> int:
        if is_free(self.columns):
            return min(self.fitting, self.free_panel)
        whole, widest = self.vectors, min(4, self.fitting)
        return -(-whole // -(-whole // widest))

    @property
    def cost(self) -> StepCost:
        return self.dot.cost

    @property
    def possible_tiles(self) -> list[Tile]:
        return [tile for tile in super().possible_tiles if tile.vectors <= self.fitting]

    @property
    def most_rows(self) -> int:
        registers = max(least for least in _MOST_ROWS if least <= self.target.registers)
        most, of_row = _MOST_ROWS[registers][self.panel], self.dot.cost.rows
        if of_row:
            most = (self.target.registers - 1 - self.panel) // (self.panel + of_row)
            # Programs for all shapes serve the more of them, the smaller their tiles are.
            most = 1 << (most.bit_length() - 1) if is_free(self.rows) else most
        return min(most, _MOST_ADDRESSES) if is_free(self.strides(self.x)[1]) else most

    @property
    def x_zero_point(self) -> int:
        return self.op.x.type.params.zero_point

    @property
    def y_shift(self) -> int:
        """The zero point of y as packed."""
        stored = self.op.y.type
        return stored.params.zero_point - (128 if stored.dtype is DType.U8 else 0)

    def prepare(self) -> None:
        if isinstance(self.depth, Size) and decide(self.depth < STEP_NBYTES):
            self.depth = int(self.depth)
        nbytes = self.panel * self.target.vector_nbytes
        self.packed = self.memory(self.steps * nbytes)
        self.initial = self.b.allocate(nbytes, 64)

    # -- packing

    def pack(self, y: Value, panel: Sequence[PanelColumns]) -> None:
        """Groups of four rows interleaved by columns, and the initial values of columns' sums."""
        b, dot, step = self.b, self.dot, self.strides(self.y)[1]
        sums: Sequence[Value] = [splat(dot.kind, "0")] * len(panel)
        whole, remainder = self.whole_steps, self.depth - self.whole_steps * STEP_NBYTES

        def packed(loop: OpenLoop) -> list[Value]:
            at_y = b.at(y, b.mul(loop.index, STEP_NBYTES * step))
            return self.pack_step(loop.index, at_y, 4, panel, loop.carried)

        sums = self.looped(sums, packed)
        if isinstance(remainder, Size) or remainder:
            at_y = b.at(y, whole * STEP_NBYTES * step)
            sums = self.pack_step(str(whole), at_y, remainder, panel, sums)
        for position, total in enumerate(sums):
            at = b.at(self.initial, position * self.target.vector_nbytes)
            b.store(dot.kind, self.column_correction(total), at, align=16)

    def pack_step(
        self,
        index: Operand,
        y: Value,
        rows: Dim,
        panel: Sequence[PanelColumns],
        sums: Sequence[Value],
    ) -> list[Value]:
        """One group of ``rows`` rows; the sums of columns, continued."""
        b, dot, nbytes = self.b, self.dot, self.target.vector_nbytes
        to = b.at(self.packed, b.mul(index, len(panel) * nbytes))
        ones = (splat(dot.bytes_kind, "1"),)
        new_sums = []
        for position, (columns, total) in enumerate(zip(panel, sums, strict=True)):
            lines = self.lines(columns, self.columns_at(y, columns, self.y), rows)
            quads = self.interleaved(lines)
            b.store(dot.bytes_kind, quads, b.at(to, position * nbytes), align=16)
            new_sums.append(dot.accumulate(b, total, ones, (quads,)))
        return new_sums

    def lines(self, columns: PanelColumns, y: Value, rows: Dim) -> list[Value]:
        """Columns of ``rows`` rows, then zeros up to four; a free number is at least 1."""
        b, step, zeros = self.b, self.strides(self.y)[1], splat(vector(self.lanes, I8), "0")
        if not isinstance(rows, Size):
            lines = [self.signed(self.row_at(y, row, step), columns) for row in range(rows)]
            return lines + [zeros] * (STEP_NBYTES - rows)
        lines = [self.signed(y, columns)]
        for row in range(1, STEP_NBYTES):
            inside = b.compare("sgt", b.index, str(rows), str(row))
            at = b.at(y, b.select(b.index, inside, b.mul(str(step), row), "0"))
            kind = vector(self.lanes, I8)
            line = self.signed(at, columns)
            lines.append(b.choose(kind, inside, line, zeros))
        return lines

    def signed(self, pointer: Value, columns: PanelColumns) -> Value:
        """Bytes of a row of y, less 128 where they are unsigned."""
        b, kind = self.b, vector(self.lanes, I8)
        raw = self.load(I8, columns, pointer)
        if self.op.y.type.dtype is DType.I8:
            return raw
        return b.op("xor", kind, raw, splat(kind, _SIGN))

    def interleaved(self, lines: Sequence[Value]) -> Value:
        """``l0[0], l1[0], l2[0], l3[0], l0[1], …``"""
        b, lanes = self.b, self.lanes
        one, two = vector(lanes, I8), vector(2 * lanes, I8)
        pairs = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
        upper, lower = (b.shuffle(one, lines[i], lines[i + 1], pairs) for i in (0, 2))
        quads = [2 * (i // 4) + i % 2 + i // 2 % 2 * 2 * lanes for i in range(4 * lanes)]
        return b.shuffle(two, upper, lower, quads)

    def column_correction(self, total: Value) -> Value:
        """The initial value of the sums of a column, whose packed bytes add up to ``total``."""
        b, kind, zero_point = self.b, self.dot.kind, self.x_zero_point
        if not zero_point:
            return splat(kind, "0")
        depth = self.depth * zero_point * self.y_shift
        if is_free(depth):
            narrow = b.as_int(str(depth))
            constant = b.broadcast(self.lanes, I32, narrow)
        else:
            constant = splat(kind, str(depth))
        return b.op("sub", kind, constant, b.op("mul", kind, total, splat(kind, str(zero_point))))

    # -- products

    def tile(
        self, rows: int, out: Value, x: Value, y: Value, panel: Sequence[PanelColumns]
    ) -> None:
        b, dot = self.b, self.dot
        step, whole = self.strides(self.x)[1], self.whole_steps
        remainder, at_once = self.depth - whole * STEP_NBYTES, self.steps_at_once

        def multiplied(index: Operand, steps: int, sums: Sequence[Value]) -> Sequence[Value]:
            at_x = b.at(x, b.mul(index, at_once * STEP_NBYTES))
            operands_by_row = [
                dot.operands(b, self.row_at(at_x, row, step), steps) for row in range(rows)
            ]
            for number in range(steps):
                position = b.add(b.mul(index, at_once), number)
                operands = [operands[number] for operands in operands_by_row]
                sums = self.added(sums, operands, position, len(panel))
            return sums

        sums = self.looped(
            self.beginning(rows, x, len(panel)),
            lambda loop: multiplied(loop.index, at_once, loop.carried),
            at_once,
        )
        left = int(whole % at_once) if at_once > 1 else 0
        if left:
            sums = multiplied(str(whole // at_once), left, sums)
        if isinstance(remainder, Size) or remainder:
            at_x = b.at(x, whole * STEP_NBYTES)
            lasts = [
                self.last_operand(self.row_at(at_x, row, step), remainder) for row in range(rows)
            ]
            sums = self.added(sums, lasts, str(whole), len(panel))
        for index, total in enumerate(sums):
            row, position = divmod(index, len(panel))
            self.store(out, row, panel[position], self.scaled(total))

    @property
    def steps_at_once(self) -> int:
        """Steps of a round of the loop."""
        return 1 if is_free(self.depth) else self.dot.steps_at_once

    @property
    def whole_steps(self) -> Dim:
        """Steps in a loop; the last one of a free depth, of one to four bytes, is done apart."""
        if is_free(self.depth):
            return self.steps - 1
        return self.depth // STEP_NBYTES

    def looped(
        self,
        sums: Sequence[Value],
        body: Callable[[OpenLoop], Sequence[Value]],
        at_once: int = 1,
    ) -> Sequence[Value]:
        """Sums after all whole steps, ``at_once`` in each round as long as there are so many."""
        count = self.whole_steps // at_once
        if not isinstance(count, Size) and not count:
            return sums
        loop = self.b.begin_times(count, [(self.dot.kind, total) for total in sums])
        return self.b.end_times(loop, count, body(loop))

    def added(
        self,
        sums: Sequence[Value],
        operands: Sequence[tuple[Value, ...]],
        step: Operand,
        count: int,
    ) -> list[Value]:
        """One step of every sum of a tile."""
        b, nbytes = self.b, self.target.vector_nbytes
        at = b.at(self.packed, b.mul(step, count * nbytes))
        weights = [self.dot.weights(b, at, i * nbytes) for i in range(count)]
        pairs = [(operand, w) for operand in operands for w in weights]
        return [
            self.dot.accumulate(b, total, *pair) for total, pair in zip(sums, pairs, strict=True)
        ]

    def beginning(self, rows: int, x: Value, count: int) -> list[Value]:
        """The initial values of the sums of a tile."""
        b, kind, nbytes = self.b, self.dot.kind, self.target.vector_nbytes
        columns = [b.load(kind, b.at(self.initial, i * nbytes), align=16) for i in range(count)]
        if not self.y_shift:
            return columns * rows
        initial: list[Value] = []
        for row in range(rows):
            total = self.row_sum(self.row_at(x, row, self.strides(self.x)[1]))
            scalar = b.op("mul", I32, total, str(-self.y_shift))
            correction = b.broadcast(self.lanes, I32, scalar)
            initial += [b.op("add", kind, column, correction) for column in columns]
        return initial

    def row_sum(self, x: Value) -> Value:
        """The sum of a row of x as stored."""
        b, dot, width = self.b, self.dot, self.target.vector_nbytes
        total = splat(dot.kind, "0")
        ones = (splat(dot.bytes_kind, "1"),)
        if isinstance(self.depth, Size):
            total = self.free_row_sum(x)
        else:
            for start in range(0, self.depth, width):
                valid = min(width, self.depth - start)
                quads = self.quads(b.at(x, start), valid)
                total = dot.accumulate(b, total, (quads,), ones)
        name = f"llvm.vector.reduce.add.v{self.lanes}i32"
        return b.call(name, I32, (dot.kind, total))

    def free_row_sum(self, x: Value) -> Value:
        """The lanes of the sum of a row of a free length."""
        b, dot, width = self.b, self.dot, self.target.vector_nbytes
        ones, whole = (splat(dot.bytes_kind, "1"),), (self.depth - 1) // width
        loop = b.begin_while(str(whole), [(dot.kind, splat(dot.kind, "0"))])
        quads = b.load(dot.bytes_kind, b.at(x, b.mul(loop.index, width)))
        (total,) = b.end_while(loop, [dot.accumulate(b, loop.carried[0], (quads,), ones)])
        x = b.at(x, str(whole * width))
        if self.target.isa.has_masks:
            mask = vectors.first_lanes(b, width, str(self.depth - whole * width))
            last = load_partial(b, self.target, I8, width, mask, x)
            return dot.accumulate(b, total, (last,), ones)
        words = self.whole_steps - whole * (width // STEP_NBYTES)
        loop = b.begin_while(str(words), [(dot.kind, total)])
        word = b.load(I32, b.at(x, b.mul(loop.index, STEP_NBYTES)))
        (total,) = b.end_while(loop, [self.with_word(loop.carried[0], word)])
        x = b.at(x, str(words * STEP_NBYTES))
        return self.with_word(total, self.last_word(x, self.depth - self.whole_steps * STEP_NBYTES))

    def with_word(self, total: Value, word: Value) -> Value:
        """A sum plus that of four bytes."""
        b, lanes = self.b, vector(self.lanes, I32)
        wide = b.insert(zero(lanes), word, 0)
        quads = b.cast("bitcast", lanes, wide, self.dot.bytes_kind)
        return self.dot.accumulate(b, total, (quads,), (splat(self.dot.bytes_kind, "1"),))

    def quads(self, pointer: Value, valid: int) -> Value:
        """``valid`` bytes of a row, then zeros."""
        b, width = self.b, self.target.vector_nbytes
        if valid == width:
            return b.load(self.dot.bytes_kind, pointer)
        raw = load_partial(b, self.target, I8, width, valid, pointer)
        mask = ", ".join(f"i8 {-1 if i < valid else 0}" for i in range(width))
        return b.op("and", self.dot.bytes_kind, b.freeze(raw), f"<{mask}>")

    def last_operand(self, row: Value, count: Dim) -> tuple[Value, ...]:
        """The last ``count`` bytes of a row, then zeros; nothing beyond them is read."""
        b, word = self.b, self.last_word(row, count)
        lanes = vector(self.lanes, I32)
        copies = b.broadcast(self.lanes, I32, word)
        return self.dot.to_operand(b, b.cast("bitcast", lanes, copies, self.dot.bytes_kind))

    def last_word(self, row: Value, count: Dim) -> Value:
        """The last bytes of a row as an int32: fewer than four, or a free number of one to four,
        of a row that has four."""
        b, word = self.b, integer(0)
        if isinstance(count, Size):
            ahead = b.op("sub", b.index, str(count), str(STEP_NBYTES))
            missing = b.as_int(b.op("mul", b.index, ahead, "-8"))
            return b.op("lshr", I32, b.load(I32, b.at(row, ahead)), missing)
        for index in range(count):
            byte = b.cast("zext", I8, b.load(I8, b.at(row, index)), I32)
            word = b.op("or", I32, word, b.op("shl", I32, byte, str(8 * index)))
        return word
