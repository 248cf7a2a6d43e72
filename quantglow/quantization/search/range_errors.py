"""Rounding errors of a value under several element types at once, and their energies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.ir.ops.arithmetic import clip_steps, quantization
from quantglow.ir.ops.native import native_ops
from quantglow.ir.types import ElementType
from quantglow.support.arrays import Array

TINY = 1e-30

TOGETHER = 4
"""Number of samples whose products are computed together."""


@dataclass(frozen=True)
class Grids:
    """The integer grids of candidate types: float32 steps, and their least and greatest numbers of
    steps from 0, [candidates, 1].
    """

    steps: Array
    lows: Array
    highs: Array

    @staticmethod
    def of(types: Sequence[ElementType]) -> Grids:
        """The grids of per-tensor types."""
        zero_points = np.array([quantization(element).zero_point for element in types])
        limits = np.array([element.dtype.limits for element in types])
        steps = np.array([quantization(element).scale for element in types], np.float32)
        lows, highs = (limits - zero_points[:, None]).astype(np.float32).T
        return Grids(steps[:, None], lows[:, None], highs[:, None])

    def errors(self, values: Array) -> Array:
        """float32 [candidates, *values.shape]: ``rounded_reals(values) - values``."""
        if native_ops() is not None:
            return self.measure(values)[0]
        flat = np.ascontiguousarray(values, np.float32).reshape(1, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = flat / self.steps
            clip_steps(errors, self.lows, self.highs)
            errors *= self.steps
            errors -= flat
        return np.asarray(errors.reshape(len(self.steps), *values.shape))

    def measure(self, values: Array) -> tuple[Array, Array]:
        """``errors``, and their sums of squares, float64 [candidates]."""
        if (native := native_ops()) is not None:
            grids = np.concatenate([self.steps, self.lows, self.highs], axis=1)
            return native.rounding_errors(np.ascontiguousarray(values, np.float32), grids)
        errors = self.errors(values)
        return errors, energies(errors, centered=False)


def products(columns: Array, weights: Array) -> Array:
    """[candidates, G, rows, O]: columns [candidates, G, rows, K] times weights [G, K, O]."""
    group, k, outputs = weights.shape
    if group == 1:
        rows = columns.reshape(-1, k) @ weights[0]
        return np.asarray(rows.reshape(len(columns), 1, -1, outputs))
    if outputs == 1:  # A BLAS call for each group would take longer than its few products.
        return np.asarray(np.einsum("cgrk,gk->cgr", columns, weights[:, :, 0]))[..., None]
    return np.asarray(columns @ weights)


def energies(values: Array, centered: bool) -> Array:
    """float64 [candidates]: sums of squares of [candidates, G, rows, O]; ``centered``: less the
    mean of each column.
    """
    if (native := native_ops()) is not None and values.dtype == np.float32:
        count, group, rows, columns = values.shape
        if not centered:  # All numbers of a candidate are one long row.
            group, rows, columns = 1, 1, group * rows * columns
        parts = np.ascontiguousarray(values).reshape(count * group, rows, columns)
        squares, sums = native.energies(parts)
        if centered and rows:
            squares = squares - sums / rows
        return np.asarray(squares.reshape(count, group).sum(axis=1))
    if centered:
        values = values - values.mean(axis=2, keepdims=True)
    exact = values.reshape(len(values), -1).astype(np.float64)
    return np.asarray(np.einsum("ci,ci->c", exact, exact))


@dataclass(frozen=True)
class Energies:
    """Energies of some samples: of the signal, and [candidates] of the errors."""

    signal: float
    errors: Array

    @staticmethod
    def of(signal: Array, errors: Array) -> Energies:
        """The energies of signals [samples, G, rows, O] and their errors [candidates, samples, G,
        rows, O], less the mean of each channel of a sample if it has several rows.
        """
        several = signal.shape[2] > 1
        each_error = energies(errors.reshape(-1, *signal.shape[1:]), several)
        sums = each_error.reshape(len(errors), -1).sum(axis=1)
        return Energies(float(energies(signal, several).sum()), sums)

    @staticmethod
    def sum(parts: Sequence[Energies]) -> Energies:
        """The energies of all samples of some parts."""
        errors = np.sum([part.errors for part in parts], axis=0)
        return Energies(sum(part.signal for part in parts), errors)


def in_halves(count: int, together: int = 1) -> list[range]:
    """Even samples, and odd ones, in parts of ``together`` at most."""
    halves = (range(first, count, 2) for first in range(min(count, 2)))
    return [
        half[start : start + together] for half in halves for start in range(0, len(half), together)
    ]


def relative(parts: Sequence[range], by_part: Sequence[Energies]) -> Array:
    """[2, candidates]: errors over the signal, of even and of odd samples (``in_halves``); a single
    sample counts as both.
    """
    signal, errors = np.zeros(2), np.zeros((2, len(by_part[0].errors)))
    for part, sums in zip(parts, by_part, strict=True):
        signal[part.start % 2] += sums.signal
        errors[part.start % 2] += sums.errors
    if not signal[1]:
        signal[1], errors[1] = signal[0], errors[0]
    return np.asarray(errors / np.maximum(signal, TINY)[:, None])
