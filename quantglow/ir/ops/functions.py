"""Functions of scalar expressions: name, meaning in NumPy or SciPy, and signature.

A signature is the kinds of the arguments, a colon, and the kind of the result: ``f`` float32,
``i`` int32, ``l`` int64, ``b`` bool, ``n`` int32 or int64, ``x`` any kind.  All ``n``, and all
``x``, of one signature are the same kind.

SciPy has the functions that NumPy lacks, and is imported on first use: a process that only runs
compiled code does not pay its 25 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from quantglow.ir.types import DType
from quantglow.support.arrays import Array

BEYOND = 100.0
"""Magnitude from which on gates are 0 and 1."""

LOG2_E = math.log2(math.e)
ROUNDING = 1.5 * 2.0**23
"""A float32 of magnitude below 2^22 plus this one is rounded to an integer in the lowest bits."""

LEAST_POWER = -127.0
BIAS, MANTISSA_BITS = 127, 23
"""Bias of the exponent of float32, and the number of bits behind the exponent."""

EXP2 = (1.0, 0.693147, 0.24022241, 0.05550735, 0.009671619, 0.0013264591)
"""Coefficients of 2^f for |f| <= 1/2, 1 at 0; error 9e-8."""

PARTIAL_SUMS = 64
"""Partial sums of a row: the number of lanes in four vectors of the widest target."""

ROW_FUNCTIONS = ("rowsum", "rowmax")
"""Functions of a whole row; of ``rowmax`` only the largest number counts if there is a NaN."""

_KINDS = {DType.F32: "f", DType.I64: "l", DType.BOOL: "b"}

SELECT = "select"
"""``select(c, x, y)``: x where c, else y."""

_SELECT_SIGNATURE = "bxx:x"


@cache
def _scipy() -> Any:
    from scipy import special

    return special


def erf(x: Any) -> Any:
    """``2 / sqrt(pi) * integral of exp(-t²) from 0 to x``"""
    return _scipy().erf(x)


def expit(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without overflow."""
    return _scipy().expit(x)


def ndtr(x: Any) -> Any:
    """``(1 + erf(x / sqrt(2))) / 2``, without cancellation below 0."""
    return _scipy().ndtr(x)


def tanh_gate(x: Any) -> Any:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2``, without cancellation below 0."""
    wide = np.clip(x, -BEYOND, BEYOND, dtype=np.float64)
    t = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    return np.asarray(expit(2 * t), np.result_type(x))


class Function(NamedTuple):
    compute: Callable[..., Any]
    signature: str


def dtype_kind(dtype: DType) -> str:
    """The kind of value that an element becomes; integers of up to 32 bits are widened."""
    return _KINDS.get(dtype, "i")


def kind_of_array(array: Array) -> str:
    """``dtype_kind`` of an array's element type."""
    return dtype_kind(DType.of(array))


def _saturate(x: Any, integer: type[Any]) -> Any:
    """float32 towards zero, within the integer type; NaN becomes 0.  Other kinds wrap."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x.astype(integer)
    low, high = np.iinfo(integer).min, np.iinfo(integer).max
    # The float32 of the largest integer is one too large; -2^31 and -2^63 are exact.
    inside = np.where((x >= np.float32(low)) & (x < np.float32(high)), x, np.float32(0))
    whole = inside.astype(integer)
    whole = np.where(x >= np.float32(high), integer(high), whole)
    return np.where(x < np.float32(low), integer(low), whole)


def _remainder(x: Any, y: Any) -> Any:
    """Remainder of the division towards zero; it has the sign of x."""
    return np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y))).astype(np.result_type(x, y))


def _quotient(x: Any, y: Any) -> Any:
    """Quotient, rounded towards zero."""
    divisor = np.where(y == 0, 1, y)
    exact = np.floor_divide(x - np.fmod(x, divisor), divisor)
    return np.where(y == 0, 0, exact).astype(np.result_type(x, y))


def _modulo(x: Any, y: Any) -> Any:
    """The remainder with the sign of y."""
    return np.where(y == 0, 0, np.mod(x, np.where(y == 0, 1, y))).astype(np.result_type(x, y))


def _shift_left(x: Any, y: Any) -> Any:
    """x shifted left; 0 for amounts outside of the width."""
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


def _shift_right(x: Any, y: Any) -> Any:
    """x shifted right with its sign; amounts outside of the width leave only the sign."""
    width = 8 * x.dtype.itemsize
    amount = np.where((y >= 0) & (y < width), y, width - 1)
    return np.right_shift(x, amount).astype(x.dtype)


def _float_remainder(x: Any, y: Any) -> Any:
    """``fmod``, exact for quotients below 2^29: one step in float64 and one correction."""
    wide, divisor = np.float64(x), np.abs(np.float64(y))
    # 24 bits of the divisor and 29 of the quotient fit float64's 53: the product is exact, and the
    # rounded quotient is off by one at most.
    remainder = np.abs(wide) - divisor * np.trunc(np.abs(wide) / divisor)
    remainder = np.where(remainder < 0, remainder + divisor, remainder)
    remainder = np.where(remainder >= divisor, remainder - divisor, remainder)
    remainder = np.where(np.isinf(divisor) & np.isfinite(wide), np.abs(wide), remainder)
    return np.copysign(remainder.astype(np.float32), x)


def shrinking_power(x: Any) -> Any:
    """``e ** x`` for x <= 0 to an absolute 2e-7, in the float32 steps that all targets take.

    2^n P(f) with x log2(e) = n + f.  0 where n is -127: such powers would be subnormal, which costs
    a processor a hundred cycles each, and masked elements are there.  NaN stays NaN, -inf gives 0.
    """
    power = np.asarray(x, np.float32) * np.float32(LOG2_E)
    power = np.maximum(power, np.float32(LEAST_POWER))
    whole = np.asarray((power + np.float32(ROUNDING)) - np.float32(ROUNDING))
    fraction = power - whole
    # Horner's rule with two roundings a step, never fused: all targets give the same bits.
    value = np.full_like(fraction, EXP2[-1])
    for coefficient in reversed(EXP2[:-1]):
        value *= fraction
        value += np.float32(coefficient)
    with np.errstate(invalid="ignore"):  # NaN has no exponent, and needs none.
        exponents = whole.astype(np.int32)
    # The bits of 2^n; 0 where n is -127.
    scale = ((exponents + BIAS) << MANTISSA_BITS).view(np.float32)
    return value * np.where(whole > LEAST_POWER, scale, np.float32(0))


def row_sum(x: Array) -> Array:
    """Sums along the last axis, kept, in the one order that all targets keep.

    Every ``PARTIAL_SUMS``-th element is added to the same partial sum, from the first on; then the
    upper half of these sums is added to the lower one until one is left.
    """
    *outer, length = x.shape
    chunks = -(-length // PARTIAL_SUMS)
    padded = np.zeros((*outer, chunks * PARTIAL_SUMS), np.float32)
    padded[..., :length] = x
    total = np.zeros((*outer, PARTIAL_SUMS), np.float32)
    for chunk in range(chunks):
        total = total + padded[..., chunk * PARTIAL_SUMS : (chunk + 1) * PARTIAL_SUMS]
    while (half := total.shape[-1] // 2) > 0:
        total = total[..., :half] + total[..., half:]
    return total


def _row_max(x: Array) -> Array:
    return np.asarray(x.max(axis=-1, keepdims=True))


UNARY: dict[str, Function] = {
    "neg": Function(np.negative, "f:f"),
    "abs": Function(np.abs, "f:f"),
    "sqrt": Function(np.sqrt, "f:f"),
    "floor": Function(np.floor, "f:f"),
    "ceil": Function(np.ceil, "f:f"),
    "rint": Function(np.rint, "f:f"),
    "exp": Function(np.exp, "f:f"),
    "expm1": Function(np.expm1, "f:f"),
    "log": Function(np.log, "f:f"),
    "log1p": Function(np.log1p, "f:f"),
    "tanh": Function(np.tanh, "f:f"),
    "erf": Function(erf, "f:f"),
    "ndtr": Function(ndtr, "f:f"),
    "tanhgate": Function(tanh_gate, "f:f"),
    "sin": Function(np.sin, "f:f"),
    "cos": Function(np.cos, "f:f"),
    "atan": Function(np.arctan, "f:f"),
    "float": Function(lambda x: np.asarray(x).astype(np.float32), "x:f"),
    "int": Function(lambda x: np.asarray(x).astype(np.int32), "f:i"),
    "int32": Function(lambda x: _saturate(x, np.int32), "x:i"),
    "int64": Function(lambda x: _saturate(x, np.int64), "x:l"),
    "not": Function(np.logical_not, "b:b"),
    "expneg": Function(shrinking_power, "f:f"),
    "rowsum": Function(row_sum, "f:f"),
    "rowmax": Function(_row_max, "f:f"),
}
"""``int`` is for values known to fit int32; ``int32`` and ``int64`` take any value."""

BINARY: dict[str, Function] = {
    "add": Function(np.add, "ff:f"),
    "sub": Function(np.subtract, "ff:f"),
    "mul": Function(np.multiply, "ff:f"),
    "div": Function(np.divide, "ff:f"),
    "max": Function(np.maximum, "ff:f"),
    "min": Function(np.minimum, "ff:f"),
    "fmax": Function(np.fmax, "ff:f"),
    "fmin": Function(np.fmin, "ff:f"),
    "pow": Function(np.power, "ff:f"),
    "fmod": Function(_float_remainder, "ff:f"),
    "iadd": Function(np.add, "nn:n"),
    "isub": Function(np.subtract, "nn:n"),
    "imul": Function(np.multiply, "nn:n"),
    "idiv": Function(_quotient, "nn:n"),
    "irem": Function(_remainder, "nn:n"),
    "imod": Function(_modulo, "nn:n"),
    "imax": Function(np.maximum, "nn:n"),
    "imin": Function(np.minimum, "nn:n"),
    "iand": Function(np.bitwise_and, "nn:n"),
    "ior": Function(np.bitwise_or, "nn:n"),
    "ixor": Function(np.bitwise_xor, "nn:n"),
    "ishl": Function(_shift_left, "nn:n"),
    "ishr": Function(_shift_right, "nn:n"),
    "and": Function(np.logical_and, "bb:b"),
    "or": Function(np.logical_or, "bb:b"),
    "xor": Function(np.logical_xor, "bb:b"),
    "eq": Function(np.equal, "xx:b"),
    "lt": Function(np.less, "xx:b"),
    "le": Function(np.less_equal, "xx:b"),
    "gt": Function(np.greater, "xx:b"),
    "ge": Function(np.greater_equal, "xx:b"),
}
"""``max``/``min`` propagate NaN; ``fmax``/``fmin`` return the other operand."""


@cache
def result_kind(name: str, arguments: tuple[str, ...]) -> str:
    """The kind of a function's result.  Raises ``TypeError`` on arguments it does not take."""
    functions = UNARY if len(arguments) == 1 else BINARY
    signature = _SELECT_SIGNATURE if name == SELECT else functions[name].signature
    takes, gives = signature.split(":")
    bound: dict[str, str] = {}
    for parameter, kind in zip(takes, arguments, strict=True):
        fits = {"n": kind in "il", "x": True}.get(parameter, kind == parameter)
        if not fits or bound.setdefault(parameter, kind) != kind:
            raise TypeError(f"{name} takes {takes}, not {''.join(arguments)}")
    return bound.get(gives, gives)
