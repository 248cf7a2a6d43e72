"""``Map``: a scalar expression over strided operands, in vectors along the best axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, vector
from quantglow.backends.llvm.kernel import KernelCall, emits
from quantglow.backends.llvm.kernels import vectors
from quantglow.backends.llvm.kernels.nest import Axis, Nest, collapsed
from quantglow.backends.llvm.kernels.scalars import Scalars
from quantglow.backends.llvm.kernels.strided import interleaved, load_kind, store_results
from quantglow.backends.llvm.kernels.vectors import ELEMENTS, Piece
from quantglow.backends.llvm.target import Target
from quantglow.instr.program import Compute
from quantglow.ops import Map
from quantglow.ops.expression import Expr
from quantglow.types import DType

MAX_PLANES = 4
"""Results with so few channels are computed plane by plane and interleaved in registers."""
SMALL_EXPRESSION = 12
"""Operations up to which a body is repeated, for instruction-level parallelism."""


@emits(Map)
def emit_map(step: Compute, target: Target) -> KernelCall:
    """The expression on every element, element by element, so that it may run in place."""
    op = step.op
    assert isinstance(op, Map)
    views = (step.output, *step.inputs)
    axes = collapsed(op.type.shape, views)
    planes = _planes(axes, op.type.dtype.nbytes)
    row = axes[-2] if planes else axes[-1]
    outer = tuple(axes[:-2] if planes else axes[:-1])
    nest = Nest(outer, row, _lanes(target, row.size), _unroll(op, planes is not None))
    dtypes = tuple(view.type.dtype for view in step.inputs)

    def text() -> str:
        b = Builder()
        pointers = b.kernel(len(views))
        body = _Body(b, target, op.expression, op.type.dtype, dtypes, row, planes)
        nest.emit(b, target, pointers, body)
        return b.finish()

    work = op.type.size * (2 + op.expression.size()) / 4
    return KernelCall(text, views, nest.items, work, "map")


def _lanes(target: Target, length: int) -> int:
    """float32 lanes; fewer where a whole row is shorter."""
    if vectors.has_masks(target) and length > 4:
        return min(target.f32_lanes, max(4, 1 << (length - 1).bit_length()))
    return vectors.narrower(target.f32_lanes, length)


def _unroll(op: Map, planar: bool) -> int:
    if planar or op.expression.size() > 2 * SMALL_EXPRESSION:
        return 1
    return 4 if op.type.dtype.nbytes == 1 or op.expression.size() <= SMALL_EXPRESSION else 2


def _planes(axes: Sequence[Axis], itemsize: int) -> Axis | None:
    """The channel axis, if the result has few channels that lie in different planes of the
    operands."""
    if len(axes) < 2:
        return None
    pixels, channels = axes[-2:]
    few = 1 < channels.size <= MAX_PLANES and channels.strides[0] == itemsize
    dense = pixels.strides[0] == channels.size * itemsize
    return channels if few and dense else None


@dataclass(frozen=True)
class _Body:
    """Code for pieces of a row.  Operand 0 of pointers and strides is the result."""

    b: Builder
    target: Target
    expression: Expr
    out: DType
    dtypes: tuple[DType, ...]
    row: Axis
    planes: Axis | None

    def __call__(self, pointers: Sequence[Value], group: Sequence[Piece]) -> None:
        if self.planes is not None:
            for piece in vectors.unmasked(group):
                self._pixels(pointers, piece, self.planes)
            return
        values = [self._values(pointers, piece) for piece in group]
        stride = self.row.strides[0]
        store_results(self.b, self.target, self.out, pointers[0], stride, group, values)

    def _values(self, pointers: Sequence[Value], piece: Piece) -> Value:
        """The expression on one piece: float32, int64, or (bool too) int32 lanes."""
        operands = [
            load_kind(self.b, dtype, pointer, stride, piece)
            for pointer, stride, dtype in zip(
                pointers[1:], self.row.strides[1:], self.dtypes, strict=True
            )
        ]
        scalars = Scalars(self.b, self.target, piece.lanes, operands, self.dtypes)
        value = scalars.value(self.expression)
        kind = scalars.lanes_of(self.expression)
        if scalars.kind_of(self.expression) == "b":
            bits, kind = kind, vector(piece.lanes, "i32")
            value = self.b.cast("zext", bits, value, kind)
        # A constant expression is a literal, which packs and selects cannot all take.
        return value if value.startswith("%") else self.b.emit(f"freeze {kind} {value}")

    def _result(self, lanes: int, value: Value) -> Value:
        """The result as the element type in memory."""
        if self.out in (DType.F32, DType.I64):
            return value
        return vectors.narrow(self.b, lanes, value, ELEMENTS[self.out])

    def _pixels(self, pointers: Sequence[Value], piece: Piece, planes: Axis) -> None:
        """All channels of neighbouring pixels."""
        channels = []
        for channel in range(planes.size):
            at_channel = [
                self.b.at(p, channel * s) for p, s in zip(pointers, planes.strides, strict=True)
            ]
            value = self._values(at_channel, piece)
            channels.append(self._result(piece.lanes, value))
        element = ELEMENTS[self.out]
        mixed = interleaved(self.b, element, piece.lanes, channels)
        target = self.b.at(pointers[0], piece.start * self.row.strides[0])
        self.b.store(vector(piece.lanes * planes.size, element), mixed, target)
