"""Division by a constant in three multiplications, rounded as the division is.

With ``y = RN(1 / c)`` and ``q = RN(x y)`` the remainder ``r = x - c q`` is known exactly, and
``RN(q + r y) = RN(x / c)`` (Markstein 1990, "Computation of elementary functions on the IBM RISC
System/6000 processor").  In short: the sum before the last rounding is wrong by ``|c y - 1|``
times what q is wrong.  With c in [1, 2) that is less than ``c 2**-26`` units in the last place
where x / c is close to the middle of two floats, and x / c, a fraction of 24-bit integers, is
never closer to it than ``2**-24 / c``.
"""

from __future__ import annotations

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.vectors import clip_float, number_or_less, suffix

SMALLEST, LARGEST = 2.0**-60, 2.0**60
"""Between these no intermediate result overflows, and none that matters loses bits."""
MOST_STEPS = 2.0**20
"""Larger limits would not be what their bounds round to."""


def divides_exactly(target: Target, divisor: float, limits: tuple[float, float]) -> bool:
    """Whether `quotient` is right for a divisor and quotients within ``limits``."""
    inside = all(abs(limit) < MOST_STEPS for limit in limits)
    return target.isa.has_fma and SMALLEST <= divisor <= LARGEST and inside


def quotient(
    b: Builder, lanes: int, x: Value, divisor: float, limits: tuple[float, float]
) -> Value:
    """``x / divisor``, or what rounds to an integer limit if beyond; NaN is low.

    Quotients below ``2**-60`` are only about right.
    """
    c = np.float32(divisor)
    # The bounds are off by half a unit in the last place: their quotients still round to the limit.
    low, high = (float(np.float32(limit) * c) for limit in limits)
    return _quotient(b, lanes, clip_float(b, lanes, x, low, high), divisor)


def quotient_at_most(b: Builder, lanes: int, x: Value, divisor: float, limit: float) -> Value:
    """``x / divisor``, or what rounds to an integer limit if greater; NaN stays, and so become
    negative quotients that float32 cannot hold.
    """
    high = float(np.float32(limit) * np.float32(divisor))
    return _quotient(b, lanes, number_or_less(b, lanes, x, high), divisor)


def _quotient(b: Builder, lanes: int, inside: Value, divisor: float) -> Value:
    kind, c = vector(lanes, "float"), np.float32(divisor)
    inverse = splat(kind, f32(float(np.float32(1) / c)))
    first = b.op("fmul", kind, inside, inverse)
    name = f"llvm.fma.{suffix(lanes, 'float')}"
    rest = b.call(name, kind, (kind, first), (kind, splat(kind, f32(-divisor))), (kind, inside))
    return b.call(name, kind, (kind, rest), (kind, inverse), (kind, first))
