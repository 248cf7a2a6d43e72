"""``Elementwise``: a scalar expression over strided operands, in vectors along the best axis.

Results of the quantizer are computed four vectors at a time: packs saturate, so that nothing is
clipped before them but what the conversion to int32 would get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, emits
from quantglow.codegen.llvm.kernels.elementwise.row_values import ITEM_NBYTES, RowParts, row_parts
from quantglow.codegen.llvm.kernels.vector import vectors
from quantglow.codegen.llvm.kernels.vector.access import (
    interleave_vectors,
    load_kind,
    store_results,
)
from quantglow.codegen.llvm.kernels.vector.loops import (
    LoopAxis,
    Nest,
    collapse_axes,
    emit_row,
    loops,
)
from quantglow.codegen.llvm.kernels.vector.scalars import POLYNOMIALS, Scalars
from quantglow.codegen.llvm.kernels.vector.vectors import ELEMENTS, Piece
from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, ConstantValue, Value, splat, vector
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.expression import Expr
from quantglow.ir.program.program import Compute
from quantglow.ir.symbolic.size import Dim, Size, decide, likely
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

LARGEST = 2.0**30
"""Values below it are far from what int32 cannot hold, whatever their roundings did."""
Range = tuple[float, float]
_BYTES = (DType.U8, DType.I8)
_LIMITS = {DType.BOOL: (0, 1), **{d: d.limits for d in (DType.I8, DType.U8, DType.I16)}}

MAX_PLANES = 4
"""Results with so few channels are computed plane by plane and interleaved in registers."""
SMALL_EXPRESSION = 12
"""Operations up to which a body is repeated, for instruction-level parallelism."""

_STORES = {1: ((0, 1),), 2: ((0, 2),), 3: ((0, 2), (2, 1)), 4: ((0, 4),)}
"""First piece and pieces of each store, by how many there are."""


@emits(Elementwise)
def emit_map(step: Compute, target: Target) -> KernelCall:
    """The expression on every element, element by element, so that it may run in place."""
    op = step.op
    assert isinstance(op, Elementwise)
    views = (step.output, *step.inputs)
    axes = collapse_axes(op.type.shape, views)
    dtypes = tuple(view.type.dtype for view in step.inputs)
    planes = _planes(axes, op.type.dtype.nbytes)
    repeats = not (target.isa.float_lanes and planes is None and _is_long(op.expression))
    unroll = _unroll(op, planes is not None, target) if repeats else 1
    most = target.f32_lanes if repeats else 1
    lanes = min(most, _lanes(target, (axes[-2] if planes else axes[-1]).size))
    if planes:
        split = RowParts(op.expression, (), dtypes, tuple(axes[:-1]), 1)
    else:
        split = row_parts(op.expression, axes, dtypes, most * unroll)
        lanes = min(most, _lanes(target, split.axes[-1].size))
    is_small = _fits_int32(op.expression, dtypes)
    nest = Nest(split.axes[:-1], split.axes[-1], lanes, unroll)

    def text() -> str:
        b = Builder(index=target.isa.index)
        pointers = b.kernel(len(views))
        pointers += _stored_parts(b, target, split, axes[-1], pointers)
        out, expression = op.type.dtype, split.expression
        body = _ElementwiseBody(
            b, target, expression, out, split.dtypes, nest.row, planes, is_small
        )
        nest.emit(b, target, pointers, body)
        return b.finish()

    work = likely(op.type.size) * (2 + op.expression.size()) / 4
    return KernelCall(text, views, nest.items, work, "map")


def _stored_parts(
    b: Builder, target: Target, split: RowParts, row: LoopAxis, pointers: Sequence[Value]
) -> list[Value]:
    """Compute the parts of rows; where each lies."""
    memories, count = [], len(row.strides) - 1
    for part, dtype in zip(split.parts, split.dtypes[count:], strict=True):
        memory = b.allocate(split.memory_nbytes, 64)
        one = LoopAxis(row.size, (ITEM_NBYTES, *row.strides[1:]))
        body = _ElementwiseBody(b, target, part, dtype, split.dtypes[:count], one, None)
        copies = LoopAxis(split.repeats, (split.row_nbytes, *[0] * count))
        with loops(b, [copies], [memory, *pointers[1:]]) as at_row:
            emit_row(b, target, Nest((), one, _lanes(target, one.size), 1), at_row, body)
        memories.append(memory)
    return memories


def _lanes(target: Target, length: Dim) -> int:
    """float32 lanes; fewer where a whole row is shorter."""
    if isinstance(length, Size):
        return target.f32_lanes
    if target.isa.has_masks and length > 4:
        return min(target.f32_lanes, max(4, 1 << (length - 1).bit_length()))
    return vectors.narrower(target.f32_lanes, length)


def _is_long(expression: Expr) -> bool:
    """Whether the code of an element is so long that it should be there once, where code counts."""
    size = expression.size()
    return size > 2 * SMALL_EXPRESSION or any(part.op in POLYNOMIALS for part in expression.parts())


def _unroll(op: Elementwise, planar: bool, target: Target) -> int:
    """Vectors of a step."""
    if planar:
        mixes = (
            target.isa.permutes_bytes
            and QuantizedExpression.of(op.expression, op.type.dtype) is not None
        )
        return 4 if mixes else 1
    if op.expression.size() > 2 * SMALL_EXPRESSION:
        return 1
    return 4 if op.type.dtype.nbytes == 1 or op.expression.size() <= SMALL_EXPRESSION else 2


def _planes(axes: Sequence[LoopAxis], itemsize: int) -> LoopAxis | None:
    """The channel axis, if the result has few channels that lie in different planes of the
    operands."""
    if len(axes) < 2:
        return None
    pixels, channels = axes[-2:]
    few = (
        not isinstance(channels.size, Size)
        and 1 < channels.size <= MAX_PLANES
        and decide(channels.strides[0] == itemsize)
    )
    dense = decide(pixels.strides[0] == channels.size * itemsize)
    return channels if few and dense else None


@dataclass(frozen=True)
class _ElementwiseBody:
    """Code for pieces of a row.  Operand 0 of pointers and strides is the result."""

    b: Builder
    target: Target
    expression: Expr
    out: DType
    dtypes: tuple[DType, ...]
    row: LoopAxis
    planes: LoopAxis | None
    is_small: bool = False
    """Whether steps of a quantized result are known to fit int32."""

    def __call__(self, pointers: Sequence[Value], group: Sequence[Piece]) -> None:
        if self.planes is not None:
            if self.target.isa.permutes_bytes and self._is_vector(group):
                self._mixed_pixels(pointers, group, self.planes)
                return
            for piece in vectors.split_masked(group):
                self._pixels(pointers, piece, self.planes)
            return
        stride = self.row.strides[0]
        if self.quantized is not None and decide(stride == 1):
            full = sum(piece.active == self.target.f32_lanes for piece in group)
            for start in range(0, full, 4):
                self._octets(pointers, group[start : min(start + 4, full)])
            group = group[full:]
        values = [self._values(pointers, piece) for piece in group]
        store_results(self.b, self.target, self.out, pointers[0], stride, group, values)

    @cached_property
    def quantized(self) -> QuantizedExpression | None:
        return QuantizedExpression.of(self.expression, self.out)

    def _is_vector(self, group: Sequence[Piece]) -> bool:
        """Whether pieces are a whole vector of quantized results."""
        full = len(group) == 4 and all(p.active == self.target.f32_lanes for p in group)
        return full and self.quantized is not None

    def _octets(self, pointers: Sequence[Value], group: Sequence[Piece]) -> None:
        """Up to four whole pieces, side by side."""
        packed = vectors.in_order(self.b, self.target.isa, self._packed(pointers, group))
        kind, lanes = vector(self.target.vector_nbytes, I8), self.target.f32_lanes
        at = self.b.at(pointers[0], group[0].start)
        for start, count in _STORES[len(group)]:
            octets = packed
            if count < 4:
                places = range(start * lanes, (start + count) * lanes)
                octets = self.b.shuffle(kind, packed, "poison", places)
            self.b.store(vector(count * lanes, I8), octets, self.b.at(at, start * lanes))

    def _packed(self, pointers: Sequence[Value], group: Sequence[Piece]) -> Value:
        """Quantized results of up to four pieces, in the order of ``vectors.packed_place``."""
        assert self.quantized is not None
        scalars = [self._scalars(pointers, piece) for piece in group]
        ints = [self.quantized.ints(s, self.is_small) for s in scalars]
        ints += [ints[-1]] * (4 - len(ints))
        return self.quantized.packed(self.b, self.target, ints)

    def _scalars(self, pointers: Sequence[Value], piece: Piece) -> Scalars:
        operands = [
            load_kind(self.b, dtype, pointer, stride, piece)
            for pointer, stride, dtype in zip(
                pointers[1:], self.row.strides[1:], self.dtypes, strict=True
            )
        ]
        return Scalars(self.b, self.target, piece.lanes, operands, self.dtypes)

    def _values(self, pointers: Sequence[Value], piece: Piece) -> Value:
        """The expression on one piece: float32, int64, or (bool too) int32 lanes."""
        scalars = self._scalars(pointers, piece)
        value = scalars.value(self.expression)
        if scalars.kind_of(self.expression) == "b":
            bits = scalars.expression_type(self.expression)
            value = self.b.cast("zext", bits, value, vector(piece.lanes, I32))
        # A constant expression is a literal, which packs and selects cannot all take.
        return self.b.freeze(value) if isinstance(value, ConstantValue) else value

    def _result(self, lanes: int, value: Value) -> Value:
        """The result as the element type in memory."""
        if self.out in (DType.F32, DType.I64):
            return value
        return vectors.narrow(self.b, lanes, value, ELEMENTS[self.out])

    def _pixels(self, pointers: Sequence[Value], piece: Piece, planes: LoopAxis) -> None:
        """All channels of neighboring pixels."""
        channels, count = [], int(planes.size)
        for channel in range(count):
            value = self._values(self._at_channel(pointers, channel), piece)
            channels.append(self._result(piece.lanes, value))
        element = ELEMENTS[self.out]
        mixed = interleave_vectors(self.b, element, piece.lanes, channels)
        target = self.b.at(pointers[0], piece.start * self.row.strides[0])
        self.b.store(vector(piece.lanes * count, element), mixed, target)

    def _mixed_pixels(
        self, pointers: Sequence[Value], group: Sequence[Piece], planes: LoopAxis
    ) -> None:
        """All channels of a vector of pixels, mixed by permutations of bytes."""
        nbytes, count = self.target.vector_nbytes, int(planes.size)
        channels = [self._packed(self._at_channel(pointers, c), group) for c in range(count)]
        kind = vector(nbytes, I8)
        for part in range(count):
            elements = [divmod(part * nbytes + i, count) for i in range(nbytes)]
            mixed = channels[0]
            for channel in range(1, count):
                order = [
                    self._mixed_place(i, *element, channel) for i, element in enumerate(elements)
                ]
                mixed = self.b.shuffle(kind, mixed, channels[channel], order)
            at = group[0].start * self.row.strides[0] + part * nbytes
            self.b.store(kind, mixed, self.b.at(pointers[0], at))

    def _mixed_place(self, index: int, pixel: int, channel: int, added: int) -> int:
        """The place of byte ``index`` of a result, when ``added`` joins the channels before it."""
        place = vectors.packed_place(self.target.isa, pixel)
        if channel == added:
            return self.target.vector_nbytes + place
        return place if (channel, added) == (0, 1) else index

    def _at_channel(self, pointers: Sequence[Value], channel: int) -> list[Value]:
        assert self.planes is not None
        strides = self.planes.strides
        return [self.b.at(p, channel * s) for p, s in zip(pointers, strides, strict=True)]


@dataclass(frozen=True)
class QuantizedExpression:
    """``int(fmin(fmax(rint(steps), low - zp), high - zp)) + zp`` as elements of ``dtype``, which
    has 8 bits.
    """

    steps: Expr
    low: int
    high: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(expression: Expr, dtype: DType) -> QuantizedExpression | None:
        """The parts of what ``expression.quantize`` made, None for other expressions."""
        match expression:
            case Expr(
                op="iadd",
                args=(
                    Expr(
                        op="int",
                        args=(
                            Expr(
                                op="fmin",
                                args=(
                                    Expr(
                                        op="fmax",
                                        args=(Expr(op="rint", args=(steps,)), Expr(op="f") as low),
                                    ),
                                    Expr(op="f") as high,
                                ),
                            ),
                        ),
                    ),
                    Expr(op="i") as zero,
                ),
            ) if dtype in _BYTES:
                zero_point = int(zero.value)
                bounds = (int(float(low.value) + zero_point), int(float(high.value) + zero_point))
                inside = dtype.limits[0] <= bounds[0] <= bounds[1] <= dtype.limits[1]
                quantized = QuantizedExpression(steps, *bounds, zero_point, dtype)
                return quantized if inside else None
        return None

    def ints(self, scalars: Scalars, is_small: bool) -> Value:
        """Rounded steps as int32 lanes; those beyond the bounds stay beyond them.  ``_is_small`` if
        all are known to fit int32.
        """
        b, lanes = scalars.b, scalars.lanes
        if is_small:
            steps = scalars.value(self.steps)
        else:
            # Huge and NaN become the least int32, which is right but for huge positive ones.
            steps = scalars.at_most(self.steps, self.high - self.zero_point)
        return scalars.target.isa.round_to_int(b, lanes, steps)

    def packed(self, b: Builder, target: Target, values: Sequence[Value]) -> Value:
        """Four vectors of `ints` as one of bytes, in the order of ``vectors.packed_place``."""
        nbytes = target.vector_nbytes
        words = [target.isa.pack_words(b, values[i], values[i + 1]) for i in (0, 2)]
        if self.zero_point:
            kind = vector(nbytes // 2, I16)
            zero = (kind, splat(kind, str(self.zero_point)))
            name = f"llvm.sadd.sat.v{nbytes // 2}i16"
            words = [b.call(name, kind, (kind, w), zero) for w in words]
        octets = target.isa.pack_bytes(b, words[0], words[1], self.dtype is DType.I8)
        return self._bounded(b, nbytes, octets)

    def _bounded(self, b: Builder, lanes: int, octets: Value) -> Value:
        kind, sign = vector(lanes, I8), "s" if self.dtype is DType.I8 else "u"
        lowest, highest = self.dtype.limits
        for name, bound, limit in (("max", self.low, lowest), ("min", self.high, highest)):
            if bound != limit:
                other = (kind, splat(kind, str(bound)))
                octets = b.call(f"llvm.{sign}{name}.v{lanes}i8", kind, (kind, octets), other)
        return octets


def _fits_int32(expression: Expr, operands: Sequence[DType]) -> bool:
    """Whether the operands' types prove that the steps of a quantized result fit int32."""
    quantized = QuantizedExpression.of(expression, DType.U8) or QuantizedExpression.of(
        expression, DType.I8
    )
    return quantized is not None and value_range(quantized.steps, operands) is not None


def value_range(expr: Expr, operands: Sequence[DType]) -> Range | None:
    """Between which values a part of an expression lies, for any operands of these types; None if
    that is not known, or not within ``LARGEST``.  Roundings are not counted.
    """
    if expr.op == "arg":
        return _LIMITS.get(operands[int(expr.value)])
    if expr.op in ("f", "i"):
        value = float(expr.value)
        return (value, value) if abs(value) < LARGEST else None
    if expr.op == "fmin" and expr.args[0].op == "fmax":
        # Between the bounds, also for NaN.
        return _clip(*(value_range(e, operands) for e in (expr.args[0].args[1], expr.args[1])))
    arg_ranges = [value_range(arg, operands) for arg in expr.args]
    ranges = [r for r in arg_ranges if r is not None]
    if len(ranges) < len(arg_ranges) or expr.op not in _RANGES:
        return None
    low, high = _RANGES[expr.op](*ranges)
    return (low, high) if max(-low, high) < LARGEST else None


def _clip(low: Range | None, high: Range | None) -> Range | None:
    return None if low is None or high is None else (low[0], high[1])


def _products(x: Range, y: Range) -> Range:
    corners = [a * c for a in x for c in y]
    return (min(corners), max(corners))


def _sums(x: Range, y: Range) -> Range:
    return (x[0] + y[0], x[1] + y[1])


def _differences(x: Range, y: Range) -> Range:
    return (x[0] - y[1], x[1] - y[0])


def _greater(x: Range, y: Range) -> Range:
    return (max(x[0], y[0]), max(x[1], y[1]))


def _lesser(x: Range, y: Range) -> Range:
    return (min(x[0], y[0]), min(x[1], y[1]))


_RANGES: dict[str, Callable[..., Range]] = {
    FLOAT: lambda x: x,
    "int": lambda x: x,
    "iadd": _sums,
    "add": _sums,
    "isub": _differences,
    "sub": _differences,
    "imul": _products,
    "mul": _products,
    "max": _greater,
    "min": _lesser,
}
