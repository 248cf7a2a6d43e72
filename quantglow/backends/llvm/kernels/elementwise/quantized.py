"""Results of the quantizer, four vectors at a time: packs saturate, so that nothing is clipped
before them but what the conversion to int32 would get wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.builder import Builder, Value, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.scalars import Scalars
from quantglow.ops.expression import Expr
from quantglow.types import DType

LARGEST = 2.0**30
"""Values below it are far from what int32 cannot hold, whatever their roundings did."""
Range = tuple[float, float]
_BYTES = (DType.U8, DType.I8)
_LIMITS = {DType.BOOL: (0, 1), **{d: d.limits for d in (DType.I8, DType.U8, DType.I16)}}


@dataclass(frozen=True)
class Quantized:
    """``int(fmin(fmax(rint(steps), low - zp), high - zp)) + zp`` as elements of ``dtype``, which
    has 8 bits.
    """

    steps: Expr
    low: int
    high: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(expression: Expr, dtype: DType) -> Quantized | None:
        """The parts of what ``expression.quantized`` made, None for other expressions."""
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
                bounds = (int(low.value + zero.value), int(high.value + zero.value))
                inside = dtype.limits[0] <= bounds[0] <= bounds[1] <= dtype.limits[1]
                made = Quantized(steps, *bounds, int(zero.value), dtype)
                return made if inside else None
        return None

    def ints(self, scalars: Scalars, is_small: bool) -> Value:
        """Rounded steps as int32 lanes; those beyond the bounds stay beyond them.  ``is_small`` if
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
            kind = vector(nbytes // 2, "i16")
            zero = (kind, splat(kind, str(self.zero_point)))
            name = f"llvm.sadd.sat.v{nbytes // 2}i16"
            words = [b.call(name, kind, (kind, w), zero) for w in words]
        octets = target.isa.pack_bytes(b, words[0], words[1], self.dtype is DType.I8)
        return self._bounded(b, nbytes, octets)

    def _bounded(self, b: Builder, lanes: int, octets: Value) -> Value:
        kind, sign = vector(lanes, "i8"), "s" if self.dtype is DType.I8 else "u"
        lowest, highest = self.dtype.limits
        for name, bound, limit in (("max", self.low, lowest), ("min", self.high, highest)):
            if bound != limit:
                other = (kind, splat(kind, str(bound)))
                octets = b.call(f"llvm.{sign}{name}.v{lanes}i8", kind, (kind, octets), other)
        return octets


def fits_int32(expression: Expr, operands: Sequence[DType]) -> bool:
    """Whether the operands' types prove that the steps of a quantized result fit int32."""
    quantized = Quantized.of(expression, DType.U8) or Quantized.of(expression, DType.I8)
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
        return _clipped(*(value_range(e, operands) for e in (expr.args[0].args[1], expr.args[1])))
    found = [value_range(arg, operands) for arg in expr.args]
    ranges = [r for r in found if r is not None]
    if len(ranges) < len(found) or expr.op not in _RANGES:
        return None
    low, high = _RANGES[expr.op](*ranges)
    return (low, high) if max(-low, high) < LARGEST else None


def _clipped(low: Range | None, high: Range | None) -> Range | None:
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
    "float": lambda x: x,
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
