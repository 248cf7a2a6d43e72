"""Integer products of activations by dot products of four bytes.

With ``y = s + 128`` the sum of ``(x - zx) * (y - zy)`` is that of ``x * s``, corrected by a number
for each row and one for each column: ``(128 - zy) * sum(x)`` and ``zx * (K * (zy - 128) - sum(s))``
negated.  All of it wraps around alike, so the int32 result is exact where it fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Value, splat, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES, DotProduct
from quantglow.backends.llvm.kernels.matmul.word_products import PANEL_NBYTES, IntegerProduct
from quantglow.backends.llvm.kernels.vector.partial import load_partial
from quantglow.lazy import cached_property
from quantglow.types import DType

_MOST_ROWS = {32: (0, 16, 12, 8, 6), 0: (0, 8, 5, 3, 2)}
"""By the least number of registers, then vectors of a panel: rows of a tile whose sums stay in
registers."""
_SIGN = "-128"


class ByteProduct(IntegerProduct):
    """A panel of y is packed once as groups of four rows; of x, four bytes of a row are broadcast
    where they lie."""

    @property
    def applies(self) -> bool:
        """Whether uint8 is multiplied by bytes, on a target that multiplies bytes as they are."""
        x, y = self.op.x.type.dtype, self.op.y.type.dtype
        if x is not DType.U8 or y not in (DType.U8, DType.I8):
            return False
        return not self.dot.widened

    @cached_property
    def dot(self) -> DotProduct:
        return self.target.dot_product(DType.U8)

    @property
    def steps(self) -> int:
        """Groups of four rows of y; the last one may hold fewer."""
        return -(-self.depth // STEP_NBYTES)

    @cached_property
    def panel(self) -> int:
        whole = -(-self.columns // self.lanes)
        fitting = PANEL_NBYTES // (self.steps * self.target.vector_nbytes)
        widest = max(1, min(4, fitting))
        return -(-whole // -(-whole // widest))

    @cached_property
    def tile_rows(self) -> int:
        registers = max(least for least in _MOST_ROWS if least <= self.target.registers)
        return min(self.rows, _MOST_ROWS[registers][self.panel])

    @property
    def x_zero_point(self) -> int:
        return self.op.x.type.params.zero_point

    @property
    def y_shift(self) -> int:
        """The zero point of y as packed."""
        stored = self.op.y.type
        return stored.params.zero_point - (128 if stored.dtype is DType.U8 else 0)

    def prepare(self) -> None:
        nbytes = self.panel * self.target.vector_nbytes
        self.packed = self.b.emit(f"alloca [{self.steps * nbytes} x i8], align 64")
        self.initial = self.b.emit(f"alloca [{nbytes} x i8], align 64")

    # -- packing

    def pack(self, y: Value, valid: Sequence[int]) -> None:
        """Groups of four rows interleaved by columns, and the initial values of columns' sums."""
        b, dot, step = self.b, self.dot, self.strides(self.y)[1]
        zeros = [splat(dot.kind, "0")] * len(valid)
        sums, whole = zeros, self.depth // STEP_NBYTES
        if whole:
            loop = b.begin_loop(whole, [(dot.kind, zero) for zero in zeros])
            at_y = b.at(y, b.mul(loop.index, STEP_NBYTES * step))
            sums = b.end_loop(loop, self.pack_step(loop.index, at_y, 4, valid, loop.carried))
        if rest := self.depth % STEP_NBYTES:
            at_y = b.at(y, whole * STEP_NBYTES * step)
            sums = self.pack_step(str(whole), at_y, rest, valid, sums)
        for position, total in enumerate(sums):
            at = b.at(self.initial, position * self.target.vector_nbytes)
            b.store(dot.kind, self.column_correction(total), at, align=16)

    def pack_step(
        self, index: Value, y: Value, rows: int, valid: Sequence[int], sums: Sequence[Value]
    ) -> list[Value]:
        """One group of ``rows`` rows; the sums of columns, continued."""
        b, dot, nbytes = self.b, self.dot, self.target.vector_nbytes
        step = self.strides(self.y)[1]
        to = b.at(self.packed, b.mul(index, len(valid) * nbytes))
        ones = (splat(dot.bytes_kind, "1"),)
        found = []
        for position, (count, total) in enumerate(zip(valid, sums, strict=True)):
            at = b.at(y, position * self.lanes)
            lines = [self.signed(b.at(at, row * step), count) for row in range(rows)]
            lines += [splat(vector(self.lanes, "i8"), "0")] * (STEP_NBYTES - rows)
            quads = self.interleaved(lines)
            b.store(dot.bytes_kind, quads, b.at(to, position * nbytes), align=16)
            found.append(dot.accumulate(b, total, ones, (quads,)))
        return found

    def signed(self, pointer: Value, count: int) -> Value:
        """Bytes of a row of y, less 128 where they are unsigned."""
        b, kind = self.b, vector(self.lanes, "i8")
        raw = load_partial(b, self.target, "i8", self.lanes, count, pointer)
        if self.op.y.type.dtype is DType.I8:
            return raw
        return b.op("xor", kind, raw, splat(kind, _SIGN))

    def interleaved(self, lines: Sequence[Value]) -> Value:
        """``l0[0], l1[0], l2[0], l3[0], l0[1], …``"""
        b, lanes = self.b, self.lanes
        one, two = vector(lanes, "i8"), vector(2 * lanes, "i8")
        pairs = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
        upper, lower = (b.shuffle(one, lines[i], lines[i + 1], pairs) for i in (0, 2))
        quads = [2 * (i // 4) + i % 2 + i // 2 % 2 * 2 * lanes for i in range(4 * lanes)]
        return b.shuffle(two, upper, lower, quads)

    def column_correction(self, total: Value) -> Value:
        """The initial value of the sums of a column, whose packed bytes add up to ``total``."""
        b, kind, zero_point = self.b, self.dot.kind, self.x_zero_point
        if not zero_point:
            return splat(kind, "0")
        constant = splat(kind, str(self.depth * zero_point * self.y_shift))
        return b.op("sub", kind, constant, b.op("mul", kind, total, splat(kind, str(zero_point))))

    # -- products

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        b, dot = self.b, self.dot
        step, whole = self.strides(self.x)[1], self.depth // STEP_NBYTES
        sums = self.beginning(rows, x, len(valid))
        if whole:
            loop = b.begin_loop(whole, [(dot.kind, total) for total in sums])
            at_x = b.at(x, b.mul(loop.index, STEP_NBYTES))
            operands = [dot.operand(b, b.at(at_x, row * step)) for row in range(rows)]
            sums = b.end_loop(loop, self.added(loop.carried, operands, loop.index, len(valid)))
        if rest := self.depth % STEP_NBYTES:
            at_x = b.at(x, whole * STEP_NBYTES)
            operands = [self.last_operand(b.at(at_x, row * step), rest) for row in range(rows)]
            sums = self.added(sums, operands, str(whole), len(valid))
        for index, total in enumerate(sums):
            row, position = divmod(index, len(valid))
            self.store(out, row, position, valid[position], self.scaled(total))

    def added(
        self, sums: Sequence[Value], operands: Sequence[tuple[Value, ...]], step: Value, count: int
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
        found: list[Value] = []
        for row in range(rows):
            total = self.row_sum(b.at(x, row * self.strides(self.x)[1]))
            scalar = b.op("mul", "i32", total, str(-self.y_shift))
            correction = b.broadcast(self.lanes, "i32", scalar)
            found += [b.op("add", kind, column, correction) for column in columns]
        return found

    def row_sum(self, x: Value) -> Value:
        """The sum of a row of x as stored."""
        b, dot, width = self.b, self.dot, self.target.vector_nbytes
        total = splat(dot.kind, "0")
        ones = (splat(dot.bytes_kind, "1"),)
        for start in range(0, self.depth, width):
            valid = min(width, self.depth - start)
            quads = self.quads(b.at(x, start), valid)
            total = dot.accumulate(b, total, (quads,), ones)
        name = f"llvm.vector.reduce.add.v{self.lanes}i32"
        return b.call(name, "i32", (dot.kind, total))

    def quads(self, pointer: Value, valid: int) -> Value:
        """``valid`` bytes of a row, then zeros."""
        b, width = self.b, self.target.vector_nbytes
        if valid == width:
            return b.load(self.dot.bytes_kind, pointer)
        raw = load_partial(b, self.target, "i8", width, valid, pointer)
        kept = ", ".join(f"i8 {-1 if i < valid else 0}" for i in range(width))
        return b.op(
            "and", self.dot.bytes_kind, b.emit(f"freeze {self.dot.bytes_kind} {raw}"), f"<{kept}>"
        )

    def last_operand(self, row: Value, count: int) -> tuple[Value, ...]:
        """The last ``count`` < 4 bytes of a row, then zeros; nothing beyond them is read."""
        b = self.b
        word = "0"
        for index in range(count):
            byte = b.cast("zext", "i8", b.load("i8", b.at(row, index)), "i32")
            word = b.op("or", "i32", word, b.op("shl", "i32", byte, str(8 * index)))
        lanes = vector(self.lanes, "i32")
        copies = b.broadcast(self.lanes, "i32", word)
        return self.dot.operand_of(b, b.cast("bitcast", lanes, copies, self.dot.bytes_kind))
