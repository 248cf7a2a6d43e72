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
from quantglow.backends.llvm.kernels.vectors import clip_float, suffix
from quantglow.backends.llvm.target import Target

SMALLEST, LARGEST = 2.0**-60, 2.0**60
"""Between these no intermediate result overflows, and none that matters loses bits."""
MOST_STEPS = 2.0**24


def divides_exactly(target: Target, divisor: float, limit: float) -> bool:
    """Whether `quotient` is right for a divisor and quotients up to ``limit``."""
    return target.fma and SMALLEST <= divisor <= LARGEST and limit < MOST_STEPS


def quotient(b: Builder, lanes: int, x: Value, divisor: float, limit: float) -> Value:
    """``x / divisor`` between ``-limit`` and ``limit``; beyond, anything beyond; NaN is low.

    Quotients below ``2**-60`` are only about right.
    """
    kind = vector(lanes, "float")
    # A power of two times the divisor: exact, and far enough from the limit.
    bound = float(np.float32(divisor)) * 2.0 ** int(np.ceil(np.log2(limit + 1)) + 1)
    inside = clip_float(b, lanes, x, -bound, bound)
    inverse = splat(kind, f32(float(np.float32(1) / np.float32(divisor))))
    first = b.op("fmul", kind, inside, inverse)
    name = f"llvm.fma.{suffix(lanes, 'float')}"
    minus = splat(kind, f32(-divisor))
    rest = b.call(name, kind, (kind, first), (kind, minus), (kind, inside))
    return b.call(name, kind, (kind, rest), (kind, inverse), (kind, first))
