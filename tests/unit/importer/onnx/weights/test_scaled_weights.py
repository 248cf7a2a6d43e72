"""Weights up to factors of each axis: what is found is right, and no values make it warn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantglow.importer.onnx.weights.locations import (
    MOST_STEPS,
    exact_factors,
    integers,
    rounded_factors,
    scale,
)
from quantglow.support.arrays import Array

SHAPE = (24, 20)
FLOATS = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, 1e-45, -1e-45, float("inf")]),
)


def weights(values: st.SearchStrategy[Any], dtype: Any = np.float32) -> st.SearchStrategy[Array]:
    """Arrays where a few values are drawn among ordinary ones."""
    return hnp.arrays(dtype, SHAPE, elements=values, fill=st.sampled_from([1, -2, 3]))


@given(target=weights(FLOATS), values=weights(FLOATS))
def test_exact_factors_give_the_tensor_back(target: Array, values: Array) -> None:
    actual = exact_factors(target, values)
    if actual is not None:
        factors, ulps = actual
        assert (integers(scale(values, factors)) + ulps == integers(target)).all()


@given(target=weights(FLOATS), codes=weights(st.integers(-127, 127), np.int8))
def test_rounded_factors_are_near(target: Array, codes: Array) -> None:
    given_codes = codes.astype(np.float32)
    factors = rounded_factors(target, given_codes)
    if factors is not None:
        steps = np.abs(scale(np.ones(SHAPE, np.float32), factors))
        assert (np.abs(target - scale(given_codes, factors)) <= MOST_STEPS * steps).all()


@pytest.mark.parametrize("tiny", [1e-45, 1e-39, 0.0])
def test_a_tiny_weight_hides_no_factors(tiny: float) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 127, SHAPE).astype(np.float32)
    rows, columns = (rng.uniform(0.5, 2, size).astype(np.float32) for size in SHAPE)
    target = codes * rows[:, None] * columns
    target[3, 5], codes[3, 5] = tiny, 1
    factors = rounded_factors(target, codes)
    assert factors is not None
    np.testing.assert_allclose(np.outer(*factors), np.outer(rows, columns), rtol=0.02)
