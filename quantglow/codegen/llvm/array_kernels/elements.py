"""Element-wise array kernels: functions, rounding to steps, rounding errors, sums of squares.

``Vectors``, ``indices`` and ``smaller`` serve all array kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.scalars import Scalars
from quantglow.codegen.llvm.kernels.vector.vectors import Piece, first_lanes, load, rint, store
from quantglow.codegen.llvm.values import (
    DOUBLE,
    FLOAT,
    I1,
    I8,
    I32,
    Operand,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops.expression import Expr
from quantglow.ir.types import DType


def map_function(target: Target, function: Expr) -> str:
    """Pointers: x, result, and the numbers ``$1``, … of a function of ``$0``; all float32.  Items:
    numbers of x."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, numbers = b.kernel(3)
    count = function.operand_count()
    others = [vectors.number(b.at(numbers, FLOAT_NBYTES * place)) for place in range(count - 1)]

    def map_some(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        operands = [load(b, FLOAT, piece, b.at(x, at)), *others]
        scalars = Scalars(b, target, vectors.lanes, operands, [DType.F32] * count)
        store(b, FLOAT, piece, scalars.value(function), b.at(result, at))

    vectors.each("%begin", "%end", map_some)
    return b.finish()


def quotients(target: Target) -> str:
    """Pointers: x [rows, columns], divisors [columns], result, the largest result, the number of
    columns; float32 but for the last.  Items: rows."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, divisors, result, bound, sizes = b.kernel(5)
    (columns,), high = indices(b, sizes, 1), vectors.number(bound)
    with b.loop("%begin", "%end") as row:
        start = b.mul(b.mul(row, columns), FLOAT_NBYTES)

        def divide(column: Value, piece: Piece) -> None:
            at = b.mul(column, FLOAT_NBYTES)
            pair = [load(b, FLOAT, piece, b.at(p, at)) for p in (b.at(x, start), divisors)]
            value = b.op("fdiv", vectors.kind, *pair)
            is_larger = b.compare("ogt", vectors.kind, value, high)
            value = b.select(vectors.kind, is_larger, high, value)
            store(b, FLOAT, piece, value, b.at(b.at(result, start), at))

        vectors.each("0", columns, divide)
    return b.finish()


def missing_sums(target: Target) -> str:
    """Pointers: sums that are wanted, sums, and bounds (low, high); all float32.  Items: numbers.
    The sums become what is missing; 0 where both are at or beyond the same bound."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    targets, sums, bounds = b.kernel(3)
    kind, mask = vectors.kind, vector(vectors.lanes, I1)
    low, high = (vectors.number(b.at(bounds, FLOAT_NBYTES * place)) for place in range(2))

    def subtract(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        pair = [load(b, FLOAT, piece, b.at(pointer, at)) for pointer in (targets, sums)]
        sides = []
        for predicate, bound in (("ole", low), ("oge", high)):
            one, other = (b.compare(predicate, kind, value, bound) for value in pair)
            sides.append(b.op("and", mask, one, other))
        missing = b.op("fsub", kind, *pair)
        missing = b.select(kind, b.op("or", mask, *sides), splat(kind, f32(0.0)), missing)
        store(b, FLOAT, piece, missing, b.at(sums, at))

    vectors.each("%begin", "%end", subtract)
    return b.finish()


def _round_steps(vectors: Vectors, value: Value, scale: Value, low: Value, high: Value) -> Value:
    """``clip(rint(value / scale), low, high) * scale``, NaN as ``low``."""
    b, kind = vectors.b, vectors.kind
    steps = _clip_steps(vectors, b.op("fdiv", kind, value, scale), low, high)
    return b.op("fmul", kind, steps, scale)


def _clip_steps(vectors: Vectors, steps: Value, low: Value, high: Value) -> Value:
    """``clip(rint(steps), low, high)``, NaN as ``low``."""
    b, kind = vectors.b, vectors.kind
    steps = rint(b, vectors.target, vectors.lanes, steps)
    steps = b.select(kind, b.compare("ogt", kind, steps, low), steps, low)
    return b.select(kind, b.compare("olt", kind, steps, high), steps, high)


def rounded_reals(target: Target) -> str:
    """Pointers: x, result, and scale, low, high.  Items: numbers."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, result, grid = b.kernel(3)
    scale, low, high = (vectors.number(b.at(grid, FLOAT_NBYTES * place)) for place in range(3))

    def round_some(index: Value, piece: Piece) -> None:
        at = b.mul(index, FLOAT_NBYTES)
        value = load(b, FLOAT, piece, b.at(x, at))
        store(b, FLOAT, piece, _round_steps(vectors, value, scale, low, high), b.at(result, at))

    vectors.each("%begin", "%end", round_some)
    return b.finish()


def integers(target: Target) -> str:
    """Pointers: sums [rows, channels], bias int32, scales, (low, high, zero point), 8-bit result,
    number of channels; others float32, bounds less the zero point.  Items: rows."""
    return _integers(target, has_residual=False)


def integers_with_residual(target: Target) -> str:
    """``integers``, and three more: an 8-bit residual [rows, channels], the bits to turn in it, and
    float32 (what it is then less, ratio)."""
    return _integers(target, has_residual=True)


def _integers(target: Target, has_residual: bool) -> str:
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    lanes, kind, whole = vectors.lanes, vectors.kind, vector(vectors.lanes, I32)
    pointers = b.kernel(9 if has_residual else 6)
    sums, bias, scales, bounds, result, sizes = pointers[:6]
    low, high, zero_point = (vectors.number(b.at(bounds, FLOAT_NBYTES * i)) for i in range(3))
    (channels,) = indices(b, sizes, 1)
    with b.loop("%begin", "%end") as row:

        def end_some(channel: Value, piece: Piece) -> None:
            place = b.add(b.mul(row, channels), channel)
            at, float_place = b.mul(channel, FLOAT_NBYTES), b.mul(place, FLOAT_NBYTES)
            total = b.cast("fptosi", kind, load(b, FLOAT, piece, b.at(sums, float_place)), whole)
            total = b.op("add", whole, total, load(b, I32, piece, b.at(bias, at)))
            scale = load(b, FLOAT, piece, b.at(scales, at))
            value = b.op("fmul", kind, b.cast("sitofp", whole, total, kind), scale)
            if has_residual:
                residual, turn, less_and_ratio = pointers[6:]
                addend = load(b, I8, piece, b.at(residual, place))
                turned = b.broadcast(lanes, I8, b.load(I8, turn, align=1))
                addend = b.op("xor", vector(lanes, I8), addend, turned)
                longer = b.cast("zext", vector(lanes, I8), addend, whole)
                steps = b.cast("uitofp", whole, longer, kind)
                steps = b.op("fsub", kind, steps, vectors.number(less_and_ratio))
                ratio = vectors.number(b.at(less_and_ratio, FLOAT_NBYTES))
                value = b.op("fadd", kind, value, b.op("fmul", kind, steps, ratio))
            value = b.op("fadd", kind, _clip_steps(vectors, value, low, high), zero_point)
            quantized = b.cast(
                "trunc", whole, b.cast("fptosi", kind, value, whole), vector(lanes, I8)
            )
            store(b, I8, piece, quantized, b.at(result, place))

        vectors.each("0", channels, end_some)
    return b.finish()


def rounding_errors(target: Target) -> str:
    """Pointers: x, errors [grids, size], grids [grids, (scale, low, high)], squares float64 [grids,
    lanes], size int64.  Items: grids.  Squares are sums of squares of the errors."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, errors, grids, squares, sizes = b.kernel(5)
    (size,) = indices(b, sizes, 1)
    wide = vector(vectors.lanes, DOUBLE)
    with b.loop("%begin", "%end") as grid:
        bounds = b.at(grids, b.mul(grid, 3 * FLOAT_NBYTES))
        scale, low, high = (vectors.number(b.at(bounds, FLOAT_NBYTES * i)) for i in range(3))
        grid_errors = b.at(errors, b.mul(b.mul(grid, size), FLOAT_NBYTES))
        total = b.at(squares, b.mul(grid, 2 * vectors.nbytes))

        def measure(index: Value, piece: Piece) -> None:
            at = b.mul(index, FLOAT_NBYTES)
            value = load(b, FLOAT, piece, b.at(x, at))
            error = b.op(
                "fsub", vectors.kind, _round_steps(vectors, value, scale, low, high), value
            )
            store(b, FLOAT, piece, error, b.at(grid_errors, at))
            # Lanes beyond the end hold 0, and so do their errors.
            earlier = b.load(wide, total, align=8)
            b.store(wide, b.op("fadd", wide, earlier, _square(vectors, error)), total, align=8)

        vectors.each("0", size, measure)
    return b.finish()


def energies(target: Target) -> str:
    """Pointers: x [items, rows, columns], sizes (rows, columns) int64, results float64 [items, 2,
    lanes].  Results are sums of squares, and the sums over columns of the squared sums of rows."""
    b = Builder(index=target.isa.index)
    vectors = Vectors(b, target)
    x, sizes, results = b.kernel(3)
    rows, columns = indices(b, sizes, 2)
    wide, pitch = vector(vectors.lanes, DOUBLE), b.mul(columns, FLOAT_NBYTES)
    with b.loop("%begin", "%end") as item:
        matrix = b.at(x, b.mul(b.mul(item, rows), pitch))
        total = b.at(results, b.mul(item, 4 * vectors.nbytes))

        def add(column: Value, piece: Piece) -> None:
            start = b.at(matrix, b.mul(column, FLOAT_NBYTES))
            zero = (wide, "zeroinitializer")
            loop = b.begin_while(rows, [zero, zero])
            value = load(b, FLOAT, piece, b.at(start, b.mul(loop.index, pitch)))
            squares, sums = loop.carried
            longer = b.cast("fpext", vectors.kind, value, wide)
            squares = b.op("fadd", wide, squares, b.op("fmul", wide, longer, longer))
            squares, sums = b.end_while(loop, [squares, b.op("fadd", wide, sums, longer)])
            for place, terms in enumerate((squares, b.op("fmul", wide, sums, sums))):
                entry = b.at(total, place * 2 * vectors.nbytes)
                earlier = b.load(wide, entry, align=8)
                b.store(wide, b.op("fadd", wide, earlier, terms), entry, align=8)

        vectors.each("0", columns, add)
    return b.finish()


def _square(vectors: Vectors, value: Value) -> Value:
    """The square of float32, exact in float64."""
    b, wide = vectors.b, vector(vectors.lanes, DOUBLE)
    longer = b.cast("fpext", vectors.kind, value, wide)
    return b.op("fmul", wide, longer, longer)


FLOAT_NBYTES = 4
POINTER_NBYTES = 8


@dataclass(frozen=True)
class Vectors:
    """Vectors of float32 of a target, under construction by ``b``."""

    b: Builder
    target: Target

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.target.f32_lanes

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return self.target.vector_nbytes

    @property
    def kind(self) -> Type:
        """The type of a vector."""
        return vector(self.lanes, FLOAT)

    def multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        """``x * y + z``, rounded once where that is an instruction."""
        b, kind = self.b, self.kind
        if self.target.isa.has_fma:
            name = f"llvm.fma.{vector(self.lanes, FLOAT).suffix}"
            return b.call(name, kind, (kind, x), (kind, y), (kind, z))
        return b.op("fadd", kind, b.op("fmul", kind, x, y), z)

    def number(self, pointer: Value) -> Value:
        """A float32 of memory in all lanes."""
        return self.b.broadcast(self.lanes, FLOAT, self.b.load(FLOAT, pointer, align=4))

    def bounded(self, value: Value, low: Value, high: Value) -> Value:
        """A vector within bounds, which are vectors; NaN stays."""
        b, kind = self.b, self.kind
        value = b.select(kind, b.compare("olt", kind, value, low), low, value)
        return b.select(kind, b.compare("ogt", kind, value, high), high, value)

    def within(self, left: Value) -> Piece:
        """The first ``left`` lanes of a vector, an index that may exceed their number."""
        return Piece(0, self.lanes, first_lanes(self.b, self.lanes, left))

    def each(self, begin: Operand, end: Operand, body: Callable[[Value, Piece], None]) -> None:
        """Emit ``body`` for the numbers from ``begin`` to ``end``, with the index of the first and
        which are there: for whole vectors, then for the rest.
        """
        b = self.b
        count = b.op("sub", b.index, end, begin)
        whole, remainder = b.divide(count, self.lanes)
        last = b.add(begin, b.mul(whole, self.lanes))
        with b.loop(begin, last, self.lanes) as index:
            body(index, Piece(0, self.lanes, self.lanes))
        with b.when(b.compare("ne", b.index, remainder, "0")):
            body(last, self.within(remainder))


def indices(b: Builder, pointer: Value, count: int) -> list[Value]:
    """The first ``count`` indices of an int64 array."""
    return [b.load_index(b.at(pointer, POINTER_NBYTES * place)) for place in range(count)]


def smaller(b: Builder, x: Value, y: Operand) -> Value:
    """The smaller of two indices."""
    return b.select(b.index, b.compare("slt", b.index, x, y), x, y)
