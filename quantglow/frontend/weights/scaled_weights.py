"""Weights that a graph has up to a factor for each index of each axis.

Folding a normalization into a convolution multiplies its output channels, equalization its input
channels, and codes of int8 have a scale for each output channel.  So a tensor of a model is often

    tensor[i, j, ...] ~ constant[i, j, ...] * f0[i] * f1[j] * ...

with factors that are guessed from the signs and logarithms of the ratios, to which each axis adds
its own; then least squares finds those of one axis after the other.  Factors that float32 cannot
hold fit nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quantglow.foreign_types import Array

Factors = list[Array]
"""float32, for each axis of a tensor."""

MOST_STEPS = 3
"""Further apart, a constant of int8 was not rounded from a tensor."""

MOST_ULPS = 127
"""Units in the last place by which factors may miss a tensor that is to come back exactly."""

NEAR = 1e-4
"""Relative error of factors that may be exact but for such units."""

ROUNDS = 4
"""Passes over all axes; the error falls at least fivefold in each."""

GLANCE, ENOUGH = 8, 64
"""Indices of each axis that tell most pairs of arrays apart, and from which factors are found."""

MOSTLY = 0.9
"""Share of elements that are near where a glance finds arrays alike, and of those with a sign."""

LEAST_ELEMENTS = 4
"""Elements for each factor: with fewer, factors fit anything."""

Nearness = Callable[[Array, Array, Factors], Array]
"""(tensor, base, factors) -> for each element whether the factors are right."""


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def rounded_factors(target: Array, codes: Array) -> Factors | None:
    """Factors with which codes of int8, in the layout of a tensor, are that up to rounding."""

    def are_near(target: Array, codes: Array, factors: Factors) -> Array:
        steps = np.abs(scaled(np.ones(codes.shape, np.float32), factors))
        return np.asarray(np.abs(target - scaled(codes, factors)) <= MOST_STEPS * steps)

    return factors_of(target, codes, are_near)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def exact_factors(target: Array, values: Array) -> tuple[Factors, Array] | None:
    """Factors with which float32 values, in the layout of a tensor, are that, and by how many units
    in the last place (int8) they miss it.
    """

    def are_near(target: Array, values: Array, factors: Factors) -> Array:
        errors = np.abs(target - scaled(values, factors))
        return np.asarray(errors <= NEAR * np.abs(target))

    factors = factors_of(target, values, are_near)
    if factors is None:
        return None
    ulps = integers(target) - integers(scaled(values, factors))
    return (factors, ulps.astype(np.int8)) if np.abs(ulps).max() <= MOST_ULPS else None


def factors_of(target: Array, base: Array, are_near: Nearness) -> Factors | None:
    """Factors with ``target ~ base * factors``, if there are any."""
    if LEAST_ELEMENTS * sum(target.shape) > target.size:
        return None
    part = np.ix_(*(spread(size, GLANCE) for size in target.shape))
    few = target[part], base[part]
    if are_near(*few, fitted(*few)).mean() < MOSTLY:
        return None
    factors = fitted(target, base)
    return factors if are_near(target, base, factors).all() else None


def fitted(target: Array, base: Array) -> Factors:
    """Factors of the base whose reciprocals, as factors of the target, give the least squares.

    Rounding is an error of the base: where it is large, the factors for the base that give the
    least squares are too small.
    """
    parts = parts_of(target.shape)
    pairs = [(target[part], base[part]) for part in parts]
    found = [guess(*pair, axis) for axis, pair in enumerate(pairs)]
    some = [spread(size, ENOUGH) for size in target.shape]
    for _ in range(ROUNDS):
        for axis in range(target.ndim):
            rest = [found[i][indices] for i, indices in enumerate(some)]
            rest[axis] = np.ones(1)
            given, wanted = scaled(pairs[axis][0], rest), pairs[axis][1]
            power, fits = over_others(given * given, axis), over_others(given * wanted, axis)
            found[axis] = np.divide(fits, power, where=power > 0, out=np.ones_like(fits))
    return [reciprocals(factors).astype(np.float32) for factors in found]


def guess(target: Array, base: Array, axis: int) -> Array:
    """The factors of one axis, but for a magnitude that they have in common."""
    is_known = (target != 0) & (base != 0)
    ratios = np.divide(base, target, where=is_known, out=np.ones(base.shape))
    is_known &= np.isfinite(ratios) & (ratios != 0)
    ratios[~is_known] = 1
    counts = np.maximum(over_others(is_known, axis), 1)
    logs = over_others(np.log(np.abs(ratios)), axis) / counts
    signs = over_others(np.sign(ratios) * is_known, axis) / counts
    found: Array = np.where(signs < -MOSTLY, -1.0, 1.0) * np.exp(logs - logs.mean())
    return found


def over_others(values: Array, axis: int) -> Array:
    """The sum over all axes but one."""
    total: Array = values.sum(axis=tuple(i for i in range(values.ndim) if i != axis))
    return total


def parts_of(shape: Sequence[int]) -> list[tuple[Array, ...]]:
    """For each axis, all of its indices and some of the others."""
    some = [spread(size, ENOUGH) for size in shape]
    return [
        np.ix_(*(np.arange(size) if i == axis else some[i] for i, size in enumerate(shape)))
        for axis in range(len(shape))
    ]


def spread(size: int, count: int) -> Array:
    """At most ``count`` indices of an axis, spread over it."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.intp))


def reciprocals(factors: Array) -> Array:
    """Reciprocals, 0 of 0."""
    return np.divide(1, factors, where=factors != 0, out=np.zeros_like(factors))


def scaled(base: Array, factors: Sequence[Array]) -> Array:
    """The base times the factors of each axis, one after the other."""
    for axis, factor in enumerate(factors):
        base = base * factor.reshape([-1 if i == axis else 1 for i in range(base.ndim)])
    return base


def integers(values: Array) -> Array:
    """The bits of float32 as integers, which count units in the last place."""
    return np.asarray(values, np.float32, order="C").view(np.int32).astype(np.int64)
