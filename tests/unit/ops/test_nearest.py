"""Resize takes the row that exact arithmetic says is the nearest one."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from quantglow.graph.node import Input
from quantglow.ops.resize import Resize
from quantglow.types import DType, TensorType


@given(st.integers(2, 40), st.integers(1, 40), st.booleans(), st.booleans())
def test_the_nearest_row_in_the_middle_is_that_of_exact_ratios(
    length: int, size: int, prefers_ceil: bool, is_centred: bool
) -> None:
    x = Input(name="x", tensor=TensorType(DType.F32, (1, length, 1, 1)))
    half = Fraction(1, 2) if is_centred else Fraction(0)
    node = Resize(
        name="y",
        x=x,
        sizes=(size, 1),
        scales=(size / length, 1.0),
        coordinates="half_pixel" if is_centred else "asymmetric",
        rounding="round_prefer_ceil" if prefers_ceil else "round_prefer_floor",
    )
    places = [(i + half) * Fraction(length, size) - half for i in range(size)]
    middle = Fraction(1, 2)
    exact = [floor(p + middle) if prefers_ceil else ceil(p - middle) for p in places]
    assert node.nearest(0, length, size).tolist() == [min(max(e, 0), length - 1) for e in exact]
