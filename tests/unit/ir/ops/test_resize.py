"""Tables of places: whatever scale and sizes a file has, they lie inside of the source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantglow.ir.graph.node import Input
from quantglow.ir.ops import AntialiasedResize, Resize
from quantglow.ir.ops.resize import tap_index
from quantglow.ir.types import f32
from quantglow.support.errors import TypeRuleError

COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
positive = st.floats(2**-149, 2.0**127, width=32)
lengths = st.integers(1, 40)
FAR = (np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 2.0**63, -0.0)


@given(
    lengths,
    lengths,
    positive,
    st.sampled_from(("nearest", "linear")),
    st.sampled_from(COORDINATES),
    st.sampled_from(ROUNDINGS),
)
@example(8, 16, 1e-38, "nearest", "half_pixel_symmetric", "floor")
@example(8, 16, 1e-38, "linear", "half_pixel_symmetric", "floor")
def test_taps_lie_in_the_source(
    length: int, size: int, scale: float, mode: str, coordinates: str, rounding: str
) -> None:
    x = Input(name="x", tensor=f32(1, length, length, 1))
    node = Resize(
        name="y",
        x=x,
        sizes=(size, size),
        scales=(scale, scale),
        mode=mode,
        coordinates=coordinates,
        rounding=rounding,
    )
    taps = node.taps(0)
    assert all(((at >= 0) & (at < length)).all() for at in (taps.first, taps.second))
    assert ((taps.weight >= 0) & (taps.weight <= 1)).all()


@pytest.mark.parametrize("length", [1, 3, 2**24 + 1, 2**25 + 3, 2**31 - 1])
def test_the_last_row_of_a_long_axis_is_the_last(length: int) -> None:
    """float32 rounds ``length - 1`` up; the integers are limited again."""
    coordinates = np.array([*FAR, length - 1, length], np.float32)
    actual = tap_index(coordinates, length)
    assert actual.dtype == np.int32
    assert ((actual >= 0) & (actual < length)).all()
    assert actual[0] == 0, "NaN is the first row on every machine"


@given(lengths, lengths, st.floats(-1, 1), st.sampled_from(COORDINATES))
def test_antialiased_weights_are_shares(
    length: int, size: int, share: float, coordinates: str
) -> None:
    """Scales whose product with the length is off the size by a row, or half of it, at most."""
    scale = (size - share * min(1, size / 2)) / length
    weights = antialiased(length, size, scale, coordinates).weights(0)
    assert weights.shape == (size, length)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 4])
def test_tables_of_tiny_scales_are_refused(length: int) -> None:
    """A triangle as wide as two results would cover 1e38 pixels."""
    with pytest.raises(TypeRuleError, match="weights"):
        antialiased(length, 1, 1e-38, "half_pixel")


def antialiased(length: int, size: int, scale: float, coordinates: str) -> AntialiasedResize:
    x = Input(name="x", tensor=f32(1, length, length, 1))
    sizes, scales = (size, size), (scale, scale)
    return AntialiasedResize(name="y", x=x, sizes=sizes, scales=scales, coordinates=coordinates)
