"""Sums of quantized products: finished in their place as if by int32 and copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops.arithmetic import saturate, saturate_over
from quantglow.ir.ops.contraction import EXACT, float_sums
from quantglow.ir.types import DType, ElementType, QuantParams

INT32 = (-(2**31), 2**31 - 1)
BIASES = st.one_of(
    st.integers(*INT32),
    st.integers(-EXACT - 1, EXACT + 1),
    st.sampled_from([0, *INT32, EXACT, -EXACT]),
)
SUMS = st.one_of(st.integers(-EXACT, EXACT), st.sampled_from([0, EXACT, -EXACT, EXACT - 1]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(pairs=st.lists(st.tuples(SUMS, BIASES), min_size=1, max_size=6), negative=st.booleans())
def test_sums_and_bias_are_added_as_int32(
    dtype: type, pairs: list[tuple[int, int]], negative: bool
) -> None:
    sums = np.array([[s for s, _ in pairs]], dtype)
    if negative:  # BLAS may give either zero.
        sums[sums == 0] = -0.0
    bias = np.array([b for _, b in pairs], np.int64).astype(np.int32)
    whole = (sums.astype(np.int64) + bias).astype(np.int32).astype(np.float32)
    actual = float_sums(sums.copy(), bias)
    np.testing.assert_array_equal(actual.view(np.int32), whole.view(np.int32))


def test_sums_without_a_bias_have_no_negative_zeros() -> None:
    assert not np.signbit(float_sums(np.full((2, 3), -0.0, np.float32), None)).any()


@given(
    steps=st.lists(st.floats(width=32), min_size=1, max_size=8),
    dtype=st.sampled_from([DType.I8, DType.U8, DType.I16]),
    data=st.data(),
)
def test_steps_saturate_in_their_place_as_in_a_copy(
    steps: list[float], dtype: DType, data: st.DataObject
) -> None:
    integers = st.integers(*dtype.limits)
    element = ElementType(dtype, QuantParams.per_tensor(0.1, data.draw(integers)))
    low, high = sorted((data.draw(integers), data.draw(integers)))
    values = np.array(steps, np.float32)
    expected = saturate(values, element, low, high)
    np.testing.assert_array_equal(saturate_over(values, element, low, high), expected)
