"""Every compiled float function as one graph, and special values for it."""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Concat, Elementwise
from quantglow.ir.ops.expression import Expr, arg, call, const
from quantglow.ir.types import DType, ElementType, f32
from quantglow.support.arrays import Array
from tools.function_accuracy import FUNCTIONS
from tools.function_errors import SMALLEST_NORMAL, compiled

EXTREMES = {
    f"{name} with {side}": call(name, *operands)
    for name in ("max", "min", "fmax", "fmin")
    for side, operands in (("2", (arg(0), const(2))), ("-2 first", (const(-2), arg(0))))
}
STEPS: dict[str, Expr] = {**{name: f.steps for name, f in FUNCTIONS.items()}, **EXTREMES}
SUBNORMAL = (2.0**-149, 1e-40, 2.0**-126 - 2.0**-149)
USUAL = (1e-8, 0.3, 0.5, 0.625, 1.0, 2.0, 3.0, 4.0, 5.5, 12.9, 20.0, 30.0, 87.3, 87.34, 88.7, 88.73)
LARGE = (103.9, 104.1, 1e10, 3.4028235e38, np.inf, np.nan)
POSITIVE = (0.0, *SUBNORMAL, SMALLEST_NORMAL, *USUAL, 0.99999994, 1.0000001, 12.95, *LARGE)
SAMPLE: Array = np.array([[sign * x for x in POSITIVE for sign in (1, -1)]], np.float32)
"""Borders of functions, NaN, infinities, zeros and subnormal numbers of both signs."""


def graph() -> Graph:
    """The functions of one row, a row each."""
    x, real = Input(name="x", tensor=f32(*SAMPLE.shape)), ElementType(DType.F32)
    parts = tuple(
        Elementwise(name=f"y{index}", args=(x,), expression=steps, out=real)
        for index, steps in enumerate(STEPS.values())
    )
    return Graph((x,), (("y", Concat(name="y", parts=parts, axis=0)),))


def differences(actual: Array, flushes: bool = False) -> list[str]:
    """Results that differ from those of this machine: NaN for NaN, else their bits.

    ``flushes``: subnormal numbers may be zeros; functions of them are those of others as small.
    """
    small = np.abs(SAMPLE[0]) < SMALLEST_NORMAL
    arguments = [SAMPLE[0]]
    if flushes:
        arguments += [np.where(small, np.float32(x), SAMPLE[0]) for x in (0.0, -0.0)]
        arguments.append(np.where(small, -SAMPLE[0], SAMPLE[0]))
    lines = []
    for row, (name, steps) in zip(actual, STEPS.items(), strict=True):
        function = compiled(steps)
        expected = [function(np.ascontiguousarray(each)) for each in arguments]
        equal = np.any([_equal(row, each, flushes) for each in expected], axis=0)
        for x, got, want in zip(SAMPLE[0][~equal], row[~equal], expected[0][~equal], strict=True):
            lines.append(f"{name} of {x} is {got}, not {want}")
    return lines


def _equal(x: Array, y: Array, flushes: bool) -> Array:
    """Whether two results are one."""
    if flushes:
        x, y = (np.where(np.abs(v) < SMALLEST_NORMAL, np.float32(0), v) for v in (x, y))
        return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))
    same_bits = x.view(np.int32) == y.view(np.int32)
    return np.asarray(same_bits | (np.isnan(x) & np.isnan(y)))
