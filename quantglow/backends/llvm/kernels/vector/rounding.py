"""Floor, ceiling and the nearest integer of any float32, without the C library."""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import absolute, suffix, with_sign_of

TWO_POW_23 = 8388608.0
"""float32 values at least this large are integers."""


def rint(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """Rounded half to even, any float32."""
    return _rounded(b, target, lanes, value, "rint")


def floor(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """The largest integer not above, any float32."""
    return _rounded(b, target, lanes, value, "floor")


def ceil(b: Builder, target: Target, lanes: int, value: Value) -> Value:
    """The smallest integer not below, any float32."""
    return _rounded(b, target, lanes, value, "ceil")


def _rounded(b: Builder, target: Target, lanes: int, value: Value, how: str) -> Value:
    kind = vector(lanes, "float")
    if target.isa.rounds_floats:
        return b.call(f"llvm.{how}.{suffix(lanes, 'float')}", kind, (kind, value))
    # Without an instruction LLVM would call libm.  Adding 2^23 to |x| < 2^23 leaves no fraction
    # bits, so the addition itself rounds half to even.
    magnitude = absolute(b, lanes, value)
    large = splat(kind, f32(TWO_POW_23))
    nearest = b.op("fsub", kind, b.op("fadd", kind, magnitude, large), large)
    nearest = with_sign_of(b, lanes, nearest, value)
    if how != "rint":
        nearest = with_sign_of(
            b, lanes, absolute(b, lanes, _corrected(b, kind, nearest, value, how)), value
        )
    small = b.compare("olt", kind, magnitude, large)
    return b.select(kind, small, nearest, value)


def _corrected(b: Builder, kind: str, nearest: Value, value: Value, how: str) -> Value:
    """One less where rounding went above the value (floor), one more where below (ceil)."""
    predicate, operation = ("ogt", "fsub") if how == "floor" else ("olt", "fadd")
    moved = b.op(operation, kind, nearest, splat(kind, f32(1.0)))
    return b.select(kind, b.compare(predicate, kind, nearest, value), moved, nearest)
