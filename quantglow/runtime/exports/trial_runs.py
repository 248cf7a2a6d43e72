"""Arrays for trial runs of exported models, and comparison of what they lead to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from quantglow.ir.graph.family import Case
from quantglow.ir.symbolic.size import FixedShape
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array, leaves

NEAR, SHARE = 0.1, 0.9
"""Share of the largest number by which this share of all numbers may differ: a rounding that turns
moves later ones, a wrong size moves all."""

MAGNITUDES = 0.25, 0.5
"""Smallest and largest number, but for its sign, that a model is run on.  Ranges are calibrated at
other sizes: a mean of one number must not leave that of means of many, nor be a few steps."""


def draw_feeds(
    inputs: Mapping[str, TensorType], case: Case, results: Collection[str]
) -> dict[str, Array]:
    """Arrays for the inputs of a graph: numbers of both signs, indices 0 and 1, short texts.

    Integers that are ``results`` of the model are 0: others may be out of bounds.
    """
    rng = np.random.default_rng(0)
    values = dict(case.values or ())

    def array(name: str, shape: FixedShape, dtype: np.dtype[np.generic]) -> Array:
        if name in values:
            return np.array(values[name]).reshape(shape).astype(dtype)
        if dtype == DType.STRING.numpy:
            return np.asarray(rng.choice(np.array(["a", "b"], dtype), shape))
        if dtype.kind == "f":
            return (rng.choice([-1, 1], shape) * rng.uniform(*MAGNITUDES, shape)).astype(dtype)
        return np.asarray(rng.integers(0, 1 if name in results else 2, shape)).astype(dtype)

    return {n: array(n, kind.fixed_shape, kind.dtype.numpy) for n, kind in inputs.items()}


def is_alike(result: Any, expected: Any) -> bool:
    """Whether most numbers are near, or most strings equal, and the shapes are equal.

    Anything may stand for NaN, such as the mean of no number: integers hold none.
    """
    parts, others = list(leaves(result)), list(leaves(expected))
    if [array.shape for array in parts] != [array.shape for array in others]:
        return False
    one, other = (np.concatenate([(), *(a.reshape(-1) for a in x)]) for x in (parts, others))
    if one.dtype.kind != "f":
        return not one.size or bool((one == other).mean() >= SHARE)
    with np.errstate(invalid="ignore"):
        finite = np.abs(other[np.isfinite(other)])
        near = np.abs(one - other) <= NEAR * finite.max(initial=0) + 1e-6
        near |= (one == other) | np.isnan(other)
    return bool(near.mean() >= SHARE) if near.size else True
