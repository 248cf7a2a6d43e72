"""Errors of a compiled function of float32 on some arguments or on all of them.

The error of a result y beside the exact value v is ``|y - v| / ulp(v)``, where ulp(v) is the
distance of float32 numbers in the binade of v, at least 2^-149: a correctly rounded result has at
most 0.5.  2^128 stands for infinity.  NaN, infinities and the signs of zeros must be those of v.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from quantglow.codegen.llvm.array_kernels.elements import map_function
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.ops.expression import Expr
from quantglow.runtime.native.array_ops import load
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each, side_by_side

ROW, BLOCK = 1 << 9, 1 << 17
"""Numbers of a row, which lie in one binade as far apart from each other, and of the rows that are
compared at a time."""
NODES, TESTS = (19, 157, 354, 492), (0, 255, 511)
"""Places of a row: a polynomial is laid through the first ones and tested at the others."""
ALL, PART = 1 << 32, 1 << 26
MANTISSA_BITS, LEAST_EXPONENT, GREATEST_EXPONENT = 23, -126, 127
INFINITY = 2.0**128
SMALLEST_NORMAL = 2.0**-126
PRODUCTS = 2.0**-119
"""Results of a number times a power that is 0 where it would be subnormal."""
MOST_WRONG = 8
"""Arguments of wrong results that are shown."""
BORDERS = (
    2.0**-24,
    0.5,
    0.625,
    1.0,
    math.pi / 2,
    4.0,
    12.9,
    17.33,
    20.0,
    87.336,
    88.723,
    103.97,
    105,
)
"""Constants of kernels: from there on they take other steps, or results are 0 or infinite."""
AROUND = 256
Compiled = Callable[[Array], Array]


@dataclass(frozen=True)
class Function:
    """A compiled function of one float32.

    ``steps``   the expression that is compiled
    ``exact``   the function on float64, with errors far below float32's
    ``bound``   the largest error, in units in the last place
    ``floor``   magnitude up to which results may be any number as small: they are flushed to 0
    """

    steps: Expr
    exact: Callable[[Array], Any]
    bound: float
    floor: float = 0.0

    def is_reached(self, largest: float) -> bool:
        """Whether the bound is the largest error rounded up to tenths, not more."""
        return largest >= self.bound - 0.1


@dataclass(frozen=True)
class Errors:
    """The largest error and its argument, and some arguments whose results are wrong in kind: NaN,
    infinity, or the sign of zero."""

    largest: float = 0.0
    at: float = 0.0
    wrong: tuple[float, ...] = ()

    def join(self, other: Errors) -> Errors:
        """The errors of both."""
        worse = max(self, other, key=lambda each: each.largest)
        return Errors(worse.largest, worse.at, (*self.wrong, *other.wrong)[:MOST_WRONG])

    def within(self, bound: float) -> bool:
        return self.largest <= bound and not self.wrong


def compiled(steps: Expr, level: str = "native") -> Compiled:
    """A function of contiguous float32 arrays, in vectors as kernels compute it."""
    target = resolve(level)
    (kernel,) = load(target, [map_function(target, steps)])

    def compute(x: Array) -> Array:
        y = np.empty_like(x)
        kernel((ctypes.c_void_p * 3)(x.ctypes.data, y.ctypes.data, 0), 0, x.size)
        return y

    return compute


def errors_of(function: Function, compute: Compiled, x: Array) -> Errors:
    """The errors of some arguments; that of results which are rounded correctly counts as 0.5, or 0
    if all of them are exact."""
    with np.errstate(all="ignore"):
        y = compute(x)
        exact = np.asarray(function.exact(x.astype(np.float64)))
        nearest = exact.astype(np.float32)
        right = y.view(np.int32) == nearest.view(np.int32)
        right |= np.isnan(y) & np.isnan(nearest)
        inexact = not np.array_equal(nearest, exact, equal_nan=True)
        least = Errors(0.5, float(x[0])) if inexact else Errors()
        if right.all():
            return least
        return least.join(_errors_of_wrong(function, *(each[~right] for each in (x, y, exact))))


def _errors_of_wrong(function: Function, x: Array, y: Array, exact: Array) -> Errors:
    """The errors of results that are not rounded correctly."""
    y = y.astype(np.float64)
    wrong = np.isnan(y) != np.isnan(exact)
    wrong |= np.isinf(exact) & (y != exact)
    zeros = (y == 0) | (exact == 0)
    wrong |= zeros & (np.signbit(y) != np.signbit(exact)) & ~wrong
    near, value = (np.clip(v, -INFINITY, INFINITY) for v in (y, exact))
    errors = np.abs(near - value) / unit(value)
    flushed = (np.abs(value) < function.floor) & (np.abs(near) <= function.floor)
    errors[np.isnan(errors) | wrong | flushed] = 0
    worst = int(errors.argmax())
    return Errors(float(errors[worst]), float(x[worst]), tuple(map(float, x[wrong][:MOST_WRONG])))


def unit(value: Array) -> Array:
    """The unit in the last place of float32 in the binade of each float64."""
    exponents = ((value.view(np.int64) >> 52) & 0x7FF) - 1023
    exponents = np.clip(exponents, LEAST_EXPONENT, GREATEST_EXPONENT) - MANTISSA_BITS
    return np.asarray(((exponents + 1023) << 52).view(np.float64))


def errors_of_block(function: Function, compute: Compiled, before: Errors, x: Array) -> Errors:
    """The errors of a block, beside the largest error of others.

    Rows of it are judged at once where a polynomial shows that no error is larger, or where all of
    the results are the same and right; every argument of the others is compared.
    """
    with np.errstate(all="ignore"):
        rows, y = x.reshape(-1, ROW), compute(x).reshape(-1, ROW)
        exact = np.asarray(function.exact(rows[:, [*NODES, *TESTS]].astype(np.float64)))
        open_rows = np.flatnonzero(~_are_near(exact, y, before.largest))
        exact, y = exact[open_rows], y[open_rows]
        nearest = exact.astype(np.float32)
        same = _bits(nearest)[:, :1]
        right = (_bits(nearest) == same).all(1) & (_bits(y) == same).all(1)
        inexact = not np.array_equal(nearest[right], exact[right], equal_nan=True)
        total = Errors(0.5, float(x[0])) if inexact else Errors()
    wrong = rows[open_rows[~right]]
    return total.join(errors_of(function, compute, wrong.ravel())) if wrong.size else total


def _are_near(exact: Array, y: Array, largest: float) -> Array:
    """Whether the errors of each row are not above the largest one, surely.

    The exact values are normal, of one sign, and smooth in that a cubic polynomial through four of
    them meets others at the ends and in the middle, where it would miss by most.
    """
    nodes, tests = exact[:, : len(NODES)], exact[:, len(NODES) :]
    values = nodes @ CUBICS
    miss = np.abs(values[:, TESTS] - tests).max(axis=1)
    size = np.abs(exact)
    low, high = size.min(axis=1), size.max(axis=1)
    step = unit(low * (1 - 2.0**-8))
    doubt = 16 * miss + high * 2.0**-48
    is_smooth = (low > 2 * SMALLEST_NORMAL) & (high < INFINITY / 2) & (doubt < step * 2.0**-10)
    is_smooth &= np.abs(np.sign(exact).sum(axis=1)) == exact.shape[1]
    np.subtract(values, y, out=values)
    error = np.maximum(values.max(axis=1), -values.min(axis=1)) + doubt
    return np.asarray(is_smooth & (error <= largest * step))


def _bits(x: Array) -> Array:
    """The bits of float32, in which all NaN are one."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32)


def _basis() -> Array:
    """Row j: the cubic polynomial that is 1 at the j-th node and 0 at others, at all of a row."""
    places, nodes = np.arange(ROW)[:, None], np.array(NODES, np.float64)
    factors = [
        (places - np.delete(nodes, j)) / (nodes[j] - np.delete(nodes, j)) for j in range(len(nodes))
    ]
    return np.ascontiguousarray(np.stack([each.prod(axis=1) for each in factors]))


CUBICS = _basis()


def floats_from(start: int) -> Array:
    """``BLOCK`` float32 numbers, by their bits."""
    return (np.uint32(start) + np.arange(BLOCK, dtype=np.uint32)).view(np.float32)


def sampled_floats(steps: Expr, seed: int = 0, each: int = 96, usual: int = 2048) -> Array:
    """float32 numbers of every exponent and sign, more of the usual ones; the ends of every binade:
    zeros, subnormal numbers, infinities and NaN are among them; and the numbers around constants of
    the steps and of kernels."""
    rng = np.random.default_rng(seed)
    exponents = np.concatenate([np.repeat(range(256), each), np.repeat(range(97, 135), usual)])
    mantissas = rng.integers(0, 1 << MANTISSA_BITS, exponents.size)
    ends = np.array([0, 1, 2, (1 << MANTISSA_BITS) - 2, (1 << MANTISSA_BITS) - 1])
    binades = (np.arange(256)[:, None] << MANTISSA_BITS) + ends
    constants = (*BORDERS, *(abs(part.value) for part in steps.parts() if part.op == "f"))
    borders = np.array(constants, np.float32).view(np.int32).astype(np.int64)
    around = np.maximum(borders[:, None] + np.arange(-AROUND, AROUND), 0)
    bits = [(exponents << MANTISSA_BITS) + mantissas, binades.ravel(), around.ravel()]
    positive = np.concatenate(bits)
    return np.concatenate([positive, positive + (1 << 31)]).astype(np.uint32).view(np.float32)


def measure(function: Function, chunks: Iterable[Array], level: str = "native") -> Errors:
    """The errors of all arguments."""
    compare = partial(errors_of, function, compiled(function.steps, level))
    return _joined(map(compare, chunks))


def measure_all(function: Function) -> Errors:
    """The errors of every float32, by a thread for each core.

    Parts follow each other: what is not near the largest error of the parts before, or of a sample,
    needs no closer look.
    """
    compute = compiled(function.steps)
    total = errors_of(function, compute, sampled_floats(function.steps))
    with side_by_side():
        for part in range(0, ALL, PART):
            compare = partial(_errors_from, function, compute, total)
            total = total.join(_joined(each(compare, range(part, part + PART, BLOCK))))
    return total


def _errors_from(function: Function, compute: Compiled, before: Errors, start: int) -> Errors:
    return errors_of_block(function, compute, before, floats_from(start))


def _joined(errors: Iterable[Errors]) -> Errors:
    return reduce(Errors.join, errors, Errors())
