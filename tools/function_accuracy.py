"""Errors of compiled float32 functions against float64, in units in the last place.

::

    python -m tools function_accuracy                  # every float32; make accuracy-functions
    python -m tools function_accuracy Erf Softplus     # of some functions
    python -m tools function_accuracy --sampled        # float32 of every exponent
    python -m tools function_accuracy --seconds        # nanoseconds for an element
    python -m tools function_accuracy --write          # the table of docs/reference/operators.md

The error of a result y beside the exact value v is ``|y - v| / ulp(v)``, where ulp(v) is the
distance of float32 numbers in the binade of v, at least 2^-149: a correctly rounded result has at
most 0.5.  2^128 stands for infinity.  NaN, infinities and the signs of zeros must be those of v.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from quantglow.backends.llvm.array_kernels.functions import mapped
from quantglow.backends.llvm.array_kernels.native import loaded
from quantglow.backends.llvm.targets import resolve
from quantglow.frontend.operators.formulas import PLAIN
from quantglow.graph.node import Input
from quantglow.ops import unary
from quantglow.ops.expression import Expr, arg, call, const
from quantglow.types import Array, f32

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "operators.md"
BEGIN = "<!-- functions: python -m tools function_accuracy --write -->\n"
END = "<!-- end of functions -->\n"
CHUNK = 1 << 13
"""Numbers that are compared at a time: their float64 stay in the second-level cache, and NumPy gets
memory for them without a call of the system."""
ALL = 1 << 32
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
TIMED, TIMES = 1 << 14, 100
X = arg(0)

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


def declared(kind: type[unary.Unary], **attributes: Any) -> Expr:
    """The steps of an operator that declares its function."""
    x = Input(name="x", tensor=f32(1))
    return kind(name="y", x=x, **attributes).expression().rounded()


def formula(name: str, exact: Callable[[Array], Any], bound: float) -> Function:
    """A function that is imported as one expression."""
    return Function(PLAIN[name], exact, bound)


def power(exponent: float, bound: float, floor: float = 0.0) -> Function:
    """A power whose exponent is a constant."""
    rounded = float(np.float32(exponent))

    def exact(x: Array) -> Array:
        # NumPy takes the square root, which has other borders, if the exponent is no array.
        return np.asarray(np.power(x, np.full_like(x, rounded)))

    return Function(call("pow", X, const(rounded)), exact, bound, floor)


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def negative_part(x: Array) -> Array:
    """``exp(x) - 1`` below 0, else x."""
    return np.where(x < 0, np.expm1(np.minimum(x, 0)), x)


def selu(x: Array) -> Array:
    alpha = np.where(x < 0, unary.Selu.alpha, 1.0)
    return np.asarray(unary.Selu.gamma * alpha * negative_part(x))


def tanh_gelu(x: Array) -> Array:
    """``x / 2 * (1 + tanh(y))`` is ``x * sigmoid(2 y)``"""
    y = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return np.asarray(x * special.expit(2 * y))


FUNCTIONS: dict[str, Function] = {
    "Acos": formula("Acos", np.arccos, 3),
    "Acosh": formula("Acosh", np.arccosh, 4),
    "Asin": formula("Asin", np.arcsin, 3),
    "Asinh": formula("Asinh", np.arcsinh, 3),
    "Atan": formula("Atan", np.arctan, 1),
    "Atanh": formula("Atanh", np.arctanh, 3),
    "Ceil": Function(declared(unary.Ceil), np.ceil, 0),
    "Celu": Function(declared(unary.Celu), negative_part, 2),
    "Cos": formula("Cos", np.cos, 1),
    "Cosh": formula("Cosh", np.cosh, 4),
    "Elu": Function(declared(unary.Elu), negative_part, 2),
    "Erf": Function(declared(unary.Erf), special.erf, 3),
    "Exp": Function(declared(unary.Exp), np.exp, 1),
    "Floor": Function(declared(unary.Floor), np.floor, 0),
    "Gelu": Function(declared(unary.Gelu), lambda x: x * special.ndtr(x), 8, PRODUCTS),
    "Gelu (tanh)": Function(declared(unary.Gelu, approximate=True), tanh_gelu, 300, PRODUCTS),
    "Log": Function(declared(unary.Log), np.log, 1),
    "Mish": Function(
        X * call("tanh", declared(unary.Softplus)), lambda x: x * np.tanh(softplus(x)), 4, PRODUCTS
    ),
    "Pow, exponent 0.5": power(0.5, 0.5),
    "Pow, exponent -0.5": power(-0.5, 2),
    "Pow, exponent 0.75": power(0.75, 3),
    "Pow, exponent 2": power(2, 0.5),
    "Pow, exponent 3": power(3, 2),
    "Pow, exponent 2.2": power(2.2, 1),
    "Pow, exponent -3": power(-3, 6, SMALLEST_NORMAL),
    "Pow, exponent 17": power(17, 1),
    "Reciprocal": Function(declared(unary.Reciprocal), lambda x: 1 / x, 0.5),
    "Round": formula("Round", np.rint, 0),
    "Selu": Function(declared(unary.Selu), selu, 3),
    "Sigmoid": Function(declared(unary.Sigmoid), special.expit, 3, SMALLEST_NORMAL),
    "Sin": formula("Sin", np.sin, 1),
    "Sinh": formula("Sinh", np.sinh, 4),
    "Softplus": Function(declared(unary.Softplus), softplus, 2, SMALLEST_NORMAL),
    "Softsign": Function(declared(unary.Softsign), lambda x: x / (1 + np.abs(x)), 2),
    "Sqrt": Function(declared(unary.Sqrt), np.sqrt, 0.5),
    "Swish": Function(declared(unary.Swish), lambda x: x * special.expit(x), 3, PRODUCTS),
    "Tan": formula("Tan", np.tan, 2),
    "Tanh": Function(declared(unary.Tanh), np.tanh, 2),
    "exp(x) - 1": Function(call("expm1", X), np.expm1, 2),
    "log(1 + x)": Function(call("log1p", X), np.log1p, 2),
    "normal distribution": Function(call("ndtr", X), special.ndtr, 8, 2 * SMALLEST_NORMAL),
    "powers in Softmax": Function(
        call("expneg", call("min", X, const(0))),
        lambda x: np.exp(np.minimum(x, 0)),
        72,
        SMALLEST_NORMAL,
    ),
}
"""By name: all functions of one float32 that round more often than ONNX's definition does."""


def compiled(steps: Expr, level: str = "native") -> Compiled:
    """A function of contiguous float32 arrays, in vectors as kernels compute it."""
    target = resolve(level)
    (kernel,) = loaded(target, [mapped(target, steps)])

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


def floats_from(start: int) -> Array:
    """``CHUNK`` float32 numbers, by their bits."""
    return np.arange(start, start + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)


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
    """The errors of all arguments; chunks are compared by a thread for each core."""
    total, compare = Errors(), partial(errors_of, function, compiled(function.steps, level))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for errors in pool.map(compare, chunks):
            total = total.join(errors)
    return total


def measure_all(function: Function) -> Errors:
    """The errors of every float32, a part of them at a time: threads are asked for few results."""
    total, part = Errors(), 1 << 26
    for first in range(0, ALL, part):
        total = total.join(measure(function, map(floats_from, range(first, first + part, CHUNK))))
    return total


def nanoseconds(function: Function) -> float:
    """The time for an element of usual size, the shortest of many runs."""
    x = np.random.default_rng(0).normal(scale=2, size=TIMED).astype(np.float32)
    compute, best = compiled(function.steps), np.inf
    for _ in range(TIMES):
        start = time.perf_counter()
        compute(x)
        best = min(best, time.perf_counter() - start)
    return float(best / TIMED * 1e9)


def table() -> str:
    """The bounds, as the documentation shows them."""
    rows = ["| function | largest error, ulp | results that may be 0 |", "| --- | --- | --- |"]
    for name, function in FUNCTIONS.items():
        flushed = f"below 2^{int(np.log2(function.floor))}" if function.floor else "-"
        rows.append(f"| {name} | {function.bound or 'exact'} | {flushed} |")
    return "\n".join([*rows, ""])


def updated(text: str) -> str:
    """The page with a new table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", help="functions (default: all)")
    command.add_argument("--sampled", action="store_true", help="not all float32 numbers")
    command.add_argument("--seconds", action="store_true", help="measure times instead")
    command.add_argument("--write", action="store_true", help="write the table of bounds")


def run(options: argparse.Namespace) -> int:
    """Print the errors; 1 if one is beyond its bound."""
    if options.write:
        PAGE.write_text(updated(PAGE.read_text()))
        return 0
    failed = 0
    for name in options.names or FUNCTIONS:
        function, start = FUNCTIONS[name], time.monotonic()
        if options.seconds:
            print(f"{name:20} {nanoseconds(function):8.3f} ns", flush=True)
            continue
        sampled = options.sampled
        found = (
            measure(function, [sampled_floats(function.steps)])
            if sampled
            else measure_all(function)
        )
        seconds = time.monotonic() - start
        failed |= not found.within(function.bound)
        print(
            f"{name:20} {found.largest:10.3f} ulp of {function.bound:g} at {found.at!r}"
            f"{f', wrong at {found.wrong}' if found.wrong else ''} ({seconds:.0f} s)",
            flush=True,
        )
    return int(failed)
