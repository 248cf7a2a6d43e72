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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from quantglow.importer.onnx.operators.math.elementwise import PLAIN
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import unary
from quantglow.ir.ops.expression import Expr, arg, call, const
from quantglow.ir.types import f32
from quantglow.support.arrays import Array
from tools.function_errors import (
    PRODUCTS,
    SMALLEST_NORMAL,
    Function,
    compiled,
    measure,
    measure_all,
    sampled_floats,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "operators.md"
BEGIN = "<!-- functions: python -m tools function_accuracy --write -->\n"
END = "<!-- end of functions -->\n"
TIMED, TIMES = 1 << 14, 100
X = arg(0)


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
    "Acos": formula("Acos", np.arccos, 2.2),
    "Acosh": formula("Acosh", np.arccosh, 3),
    "Asin": formula("Asin", np.arcsin, 2.6),
    "Asinh": formula("Asinh", np.arcsinh, 1.8),
    "Atan": formula("Atan", np.arctan, 0.6),
    "Atanh": formula("Atanh", np.arctanh, 2.1),
    "Ceil": Function(declared(unary.Ceil), np.ceil, 0),
    "Celu": Function(declared(unary.Celu), negative_part, 1),
    "Cos": formula("Cos", np.cos, 0.6),
    "Cosh": formula("Cosh", np.cosh, 3.1),
    "Elu": Function(declared(unary.Elu), negative_part, 1),
    "Erf": Function(declared(unary.Erf), special.erf, 2.8),
    "Exp": Function(declared(unary.Exp), np.exp, 1),
    "Floor": Function(declared(unary.Floor), np.floor, 0),
    "Gelu": Function(declared(unary.Gelu), lambda x: x * special.ndtr(x), 8, PRODUCTS),
    "Gelu (tanh)": Function(declared(unary.Gelu, approximate=True), tanh_gelu, 6.4, PRODUCTS),
    "Log": Function(declared(unary.Log), np.log, 0.9),
    "Mish": Function(
        X * call("tanh", declared(unary.Softplus)),
        lambda x: x * np.tanh(softplus(x)),
        3.6,
        PRODUCTS,
    ),
    "Pow, exponent 0.5": power(0.5, 0.5),
    "Pow, exponent -0.5": power(-0.5, 1.5),
    "Pow, exponent 0.75": power(0.75, 2.4),
    "Pow, exponent 2": power(2, 0.5),
    "Pow, exponent 3": power(3, 1.3),
    "Pow, exponent 2.2": power(2.2, 0.6),
    "Pow, exponent -3": power(-3, 5, SMALLEST_NORMAL),
    "Pow, exponent 17": power(17, 0.6),
    "Reciprocal": Function(declared(unary.Reciprocal), lambda x: 1 / x, 0.5),
    "Round": formula("Round", np.rint, 0),
    "Selu": Function(declared(unary.Selu), selu, 2.3),
    "Sigmoid": Function(declared(unary.Sigmoid), special.expit, 2.5, SMALLEST_NORMAL),
    "Sin": formula("Sin", np.sin, 0.6),
    "Sinh": formula("Sinh", np.sinh, 3.8),
    "Softplus": Function(declared(unary.Softplus), softplus, 1.7, SMALLEST_NORMAL),
    "Softsign": Function(declared(unary.Softsign), lambda x: x / (1 + np.abs(x)), 1.5),
    "Sqrt": Function(declared(unary.Sqrt), np.sqrt, 0.5),
    "Swish": Function(declared(unary.Swish), lambda x: x * special.expit(x), 2.5, PRODUCTS),
    "Tan": formula("Tan", np.tan, 2),
    "Tanh": Function(declared(unary.Tanh), np.tanh, 1.4),
    "exp(x) - 1": Function(call("expm1", X), np.expm1, 1.6),
    "log(1 + x)": Function(call("log1p", X), np.log1p, 1.4),
    "normal distribution": Function(call("ndtr", X), special.ndtr, 7.4, 2 * SMALLEST_NORMAL),
    "powers in Softmax": Function(
        call("expneg", call("min", X, const(0))),
        lambda x: np.exp(np.minimum(x, 0)),
        63.8,
        SMALLEST_NORMAL,
    ),
}
"""By name: all functions of one float32 that round more often than ONNX's definition does."""


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
    before, remaining = text.split(BEGIN)
    return before + BEGIN + table() + END + remaining.split(END)[1]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", help="functions (default: all)")
    command.add_argument("--sampled", action="store_true", help="not all float32 numbers")
    command.add_argument("--seconds", action="store_true", help="measure times instead")
    command.add_argument("--write", action="store_true", help="write the table of bounds")


def run(options: argparse.Namespace) -> int:
    """Print the errors; 1 if one is beyond its bound, or none of all arguments reaches it."""
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
        actual = (
            measure(function, [sampled_floats(function.steps)])
            if sampled
            else measure_all(function)
        )
        seconds = time.monotonic() - start
        failed |= not actual.within(function.bound)
        failed |= not (sampled or function.is_reached(actual.largest))
        print(
            f"{name:20} {actual.largest:12.6f} ulp of {function.bound:g} at {actual.at!r}"
            f"{f', wrong at {actual.wrong}' if actual.wrong else ''} ({seconds:.0f} s)",
            flush=True,
        )
    return int(failed)
