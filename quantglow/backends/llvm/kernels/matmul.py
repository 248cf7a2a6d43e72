"""``MatMul`` of activations: [B, M, K] times [B, K, N], float32 or exact int32 sums of bytes.

A work item is a panel of columns of one batch.  Integers are centred to 16 bits: a panel of y is
packed once as pairs of rows, x a few rows at a time, and ``pmaddwd`` adds two products at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels import vectors
from quantglow.backends.llvm.kernels.partial import load_partial, store_partial
from quantglow.backends.llvm.kernels.vectors import ELEMENTS
from quantglow.backends.llvm.target import Target
from quantglow.instr.program import Compute, View
from quantglow.ops import MatMul
from quantglow.types import DType

PANEL_NBYTES = 256 * 1024
"""The packed panel of an integer product lies on the stack: not more than this."""
_MADD = {
    16: "llvm.x86.sse2.pmadd.wd",
    32: "llvm.x86.avx2.pmadd.wd",
    64: "llvm.x86.avx512.pmaddw.d.512",
}


@emits(MatMul)
def emit_matmul(step: Compute, target: Target) -> KernelCall:
    """One work item for each batch and panel of columns."""
    op = step.op
    assert isinstance(op, MatMul)
    x, y = step.inputs
    kind = _FloatProduct if op.x.type.dtype.is_float else _IntegerProduct
    kernel = kind(Builder(), target, op, x, y, step.output)
    batch, rows, columns = op.type.shape
    work = float(batch * rows * columns * op.x.type.shape[2]) / 8
    pointers = (step.output, x, y)
    return KernelCall(kernel.text, pointers, kernel.items, work, "matmul")


@dataclass
class _Product:
    """What both kinds share: panels of columns, tiles of rows."""

    b: Builder
    target: Target
    op: MatMul
    x: View
    y: View
    out: View

    def __post_init__(self) -> None:
        self.batch, self.rows, self.columns = self.op.type.shape
        self.depth = self.op.x.type.shape[2]

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @cached_property
    def tile_rows(self) -> int:
        return min(self.rows, 8 if self.target.registers == 32 else 4)

    @cached_property
    def panel(self) -> int:
        """Vectors of columns of a panel."""
        return min(3 if self.target.registers == 32 else 2, -(-self.columns // self.lanes))

    @cached_property
    def panels(self) -> int:
        return -(-self.columns // (self.panel * self.lanes))

    @property
    def items(self) -> int:
        return self.batch * self.panels

    def valid(self, last: bool) -> list[int]:
        """Columns of each vector in a panel."""
        width = self.panel * self.lanes
        if last and self.columns % width:
            width = self.columns % width
        starts = range(0, width, self.lanes)
        return [min(self.lanes, width - start) for start in starts]

    def strides(self, view: View) -> list[int]:
        return [s * view.type.dtype.nbytes for s in view.strides]

    def prepare(self) -> None:
        """Set aside memory, at the entry."""

    def pack(self, y: Value, valid: Sequence[int]) -> None:
        """Prepare a panel of y."""

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        raise NotImplementedError

    def text(self) -> str:
        b = self.b
        out, x, y = b.kernel(3)
        self.prepare()
        width = self.panel * self.lanes
        with b.loop("%begin", "%end") as item:
            batch, panel = b.divide(item, self.panels)
            at = [
                b.at(pointer, b.mul(batch, self.strides(view)[0]))
                for pointer, view in ((out, self.out), (x, self.x), (y, self.y))
            ]
            at[0] = b.at(at[0], b.mul(panel, width * self.out.type.dtype.nbytes))
            at[2] = b.at(at[2], b.mul(panel, width * self.y.type.dtype.nbytes))
            self.panel_cases(panel, at)
        return b.finish()

    def panel_cases(self, panel: Value, at: Sequence[Value]) -> None:
        """Full panels and the last one, which may be narrower."""
        b = self.b
        if self.panels == 1 or not self.columns % (self.panel * self.lanes):
            self.all_rows(at, self.valid(last=True))
            return
        last = b.compare("eq", "i64", panel, str(self.panels - 1))
        with b.when(b.op("xor", "i1", last, "true")):
            self.all_rows(at, self.valid(last=False))
        with b.when(last):
            self.all_rows(at, self.valid(last=True))

    def all_rows(self, at: Sequence[Value], valid: Sequence[int]) -> None:
        b = self.b
        out, x, y = at
        self.pack(y, valid)
        whole = self.rows // self.tile_rows
        x_step, out_step = self.strides(self.x)[1], self.strides(self.out)[1]
        with b.loop(0, whole) as index:
            at_x = b.at(x, b.mul(index, self.tile_rows * x_step))
            at_out = b.at(out, b.mul(index, self.tile_rows * out_step))
            self.tile(self.tile_rows, at_out, at_x, y, valid)
        done = whole * self.tile_rows
        if done < self.rows:
            at_x, at_out = b.at(x, done * x_step), b.at(out, done * out_step)
            self.tile(self.rows - done, at_out, at_x, y, valid)

    def store(self, out: Value, row: int, position: int, valid: int, value: Value) -> None:
        element = ELEMENTS[self.out.type.dtype]
        nbytes = self.out.type.dtype.nbytes
        offset = row * self.strides(self.out)[1] + position * self.lanes * nbytes
        at = self.b.at(out, offset)
        store_partial(self.b, self.target, element, self.lanes, valid, value, at)


class _FloatProduct(_Product):
    """Sums in float32, fused where the target can."""

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        b, kind = self.b, vector(self.lanes, "float")
        zeros = [(kind, splat(kind, f32(0.0)))] * (rows * len(valid))
        loop = b.begin_loop(self.depth, zeros)
        at_x = b.at(x, b.mul(loop.index, self.strides(self.x)[2]))
        at_y = b.at(y, b.mul(loop.index, self.strides(self.y)[1]))
        right = [
            load_partial(b, self.target, "float", self.lanes, n, b.at(at_y, i * self.lanes * 4))
            for i, n in enumerate(valid)
        ]
        sums: list[Value] = []
        for row in range(rows):
            scalar = b.load("float", b.at(at_x, row * self.strides(self.x)[1]))
            left = b.broadcast(self.lanes, "float", scalar)
            carried = loop.carried[row * len(valid) : (row + 1) * len(valid)]
            sums += [self.added(s, left, r) for s, r in zip(carried, right, strict=True)]
        sums = b.end_loop(loop, sums)
        for index, value in enumerate(sums):
            row, position = divmod(index, len(valid))
            self.store(out, row, position, valid[position], value)

    def added(self, total: Value, a: Value, c: Value) -> Value:
        b, kind = self.b, vector(self.lanes, "float")
        if self.target.fma:
            name = f"llvm.fma.v{self.lanes}f32"
            return b.call(name, kind, (kind, a), (kind, c), (kind, total))
        return b.op("fadd", kind, total, b.op("fmul", kind, a, c))


class _IntegerProduct(_Product):
    """``(x - zero point) @ (y - zero point)``, exact in int32."""

    @property
    def pairs(self) -> int:
        """Pairs of rows of y; a last odd row is paired with zeros."""
        return -(-self.depth // 2)

    @cached_property
    def panel(self) -> int:
        fitting = PANEL_NBYTES // (self.pairs * self.target.vector_nbytes)
        widest = 3 if self.target.registers == 32 else 2
        return max(1, min(widest, fitting, -(-self.columns // self.lanes)))

    def prepare(self) -> None:
        nbytes = self.pairs * self.panel * self.target.vector_nbytes
        self.packed = self.b.emit(f"alloca [{nbytes} x i8], align 64")
        # Rows are centred whole vectors at a time.
        self.row_nbytes = (self.depth + 4 * self.lanes) * 2 // 4 * 4
        self.centred = self.b.emit(f"alloca [{self.tile_rows * self.row_nbytes} x i8], align 64")

    # -- packing

    def pack(self, y: Value, valid: Sequence[int]) -> None:
        """Pairs of rows, centred, interleaved by columns."""
        b = self.b
        step = self.strides(self.y)[1]
        with b.loop(0, self.depth // 2) as pair:
            upper = b.at(y, b.mul(pair, 2 * step))
            self.pack_pair(pair, upper, b.at(upper, step), valid)
        if self.depth % 2:
            last = self.depth // 2
            self.pack_pair(str(last), b.at(y, 2 * last * step), None, valid)

    def pack_pair(
        self, pair: Value, upper: Value, lower: Value | None, valid: Sequence[int]
    ) -> None:
        b, lanes = self.b, self.lanes
        halves, whole = vector(lanes, "i16"), vector(2 * lanes, "i16")
        order = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
        row = b.at(self.packed, b.mul(pair, len(valid) * self.target.vector_nbytes))
        for position, count in enumerate(valid):
            offset = position * lanes * self.y.type.dtype.nbytes
            first = self.words(b.at(upper, offset), count, self.y)
            second = splat(halves, "0")
            if lower is not None:
                second = self.words(b.at(lower, offset), count, self.y)
            mixed = b.shuffle(halves, first, second, order)
            b.store(whole, mixed, b.at(row, position * self.target.vector_nbytes), align=16)

    def words(self, pointer: Value, count: int, view: View) -> Value:
        """A vector of integers, centred, in 16 bits."""
        b, dtype = self.b, view.type.dtype
        wide = load_partial(b, self.target, ELEMENTS[dtype], self.lanes, count, pointer)
        kind = vector(self.lanes, "i16")
        if dtype is not DType.I16:
            extend = "sext" if dtype is DType.I8 else "zext"
            wide = b.cast(extend, vector(self.lanes, "i8"), wide, kind)
        zero_point = view.type.params.zero_point
        return b.op("sub", kind, wide, splat(kind, str(zero_point))) if zero_point else wide

    def centre_rows(self, rows: int, x: Value) -> None:
        """Rows of x in 16 bits; an odd last element is paired with zero."""
        b, lanes, itemsize = self.b, self.lanes, self.x.type.dtype.nbytes
        for row in range(rows):
            source = b.at(x, row * self.strides(self.x)[1])
            target = b.at(self.centred, row * self.row_nbytes)
            whole = self.depth - self.depth % lanes
            with b.loop(0, whole, lanes) as index:
                words = self.words(b.at(source, b.mul(index, itemsize)), lanes, self.x)
                b.store(vector(lanes, "i16"), words, b.at(target, b.mul(index, 2)))
            if whole < self.depth:
                words = self.words(b.at(source, whole * itemsize), self.depth - whole, self.x)
                b.store(vector(lanes, "i16"), words, b.at(target, 2 * whole))
            if self.depth % 2:
                b.store("i16", "0", b.at(target, 2 * self.depth))

    # -- products

    def tile(self, rows: int, out: Value, x: Value, y: Value, valid: Sequence[int]) -> None:
        b, lanes = self.b, self.lanes
        self.centre_rows(rows, x)
        kind, words = vector(lanes, "i32"), vector(2 * lanes, "i16")
        loop = b.begin_loop(self.pairs, [(kind, splat(kind, "0"))] * (rows * len(valid)))
        nbytes = self.target.vector_nbytes
        at_y = b.at(self.packed, b.mul(loop.index, len(valid) * nbytes))
        right = [b.load(words, b.at(at_y, i * nbytes), align=16) for i in range(len(valid))]
        at_x = b.at(self.centred, b.mul(loop.index, 4))
        sums: list[Value] = []
        for row in range(rows):
            pair = b.load("i32", b.at(at_x, row * self.row_nbytes), align=2)
            left = b.cast("bitcast", kind, b.broadcast(lanes, "i32", pair), words)
            for pairs in right:
                products = b.call(_MADD[nbytes], kind, (words, left), (words, pairs))
                sums.append(b.op("add", kind, loop.carried[len(sums)], products))
        sums = b.end_loop(loop, sums)
        for index, total in enumerate(sums):
            row, position = divmod(index, len(valid))
            self.store(out, row, position, valid[position], self.scaled(total))

    def scaled(self, total: Value) -> Value:
        """The sum in reals, or rounded to the result's integers in its element type."""
        b, op = self.b, self.op
        kind = vector(self.lanes, "float")
        real = vectors.int_to_float(b, self.lanes, total)
        steps = b.op("fmul", kind, real, splat(kind, f32(float(op.accumulator_scale()))))
        if op.out is None:
            return steps
        limits, zero_point = op.out.dtype.limits, op.type.params.zero_point
        rounded = vectors.quantize_steps(b, self.target, self.lanes, steps, *limits, zero_point)
        return vectors.narrow(b, self.lanes, rounded, ELEMENTS[op.out.dtype])
