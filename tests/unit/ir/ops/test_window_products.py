"""Convolutions part by part, beside one sum for each result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops.windows import MANY_CHANNELS, Images, conv2d
from quantglow.support.arrays import Array

CHANNELS = [1, 2, 3, MANY_CHANNELS - 1, MANY_CHANNELS, MANY_CHANNELS + 1, 70]


def one_by_one(x: Array, w: Array, strides: tuple[int, int], dilations: tuple[int, int]) -> Array:
    """A depthwise convolution in int64."""
    (n, h, width, c), (kh, kw) = x.shape, w.shape[:2]
    oh = (h - dilations[0] * (kh - 1) - 1) // strides[0] + 1
    ow = (width - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    result = np.zeros((n, oh, ow, c), np.int64)
    for row, column, i, j in np.ndindex(oh, ow, kh, kw):
        top = row * strides[0] + i * dilations[0]
        left = column * strides[1] + j * dilations[1]
        result[:, row, column] += x[:, top, left].astype(np.int64) * w[i, j, 0].astype(np.int64)
    return result


@given(
    channels=st.sampled_from(CHANNELS),
    images=st.integers(0, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    extra=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_depthwise_sums_of_integers_are_exact(
    channels: int,
    images: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    extra: tuple[int, int],
    dtype: type,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    size = [d * (k - 1) + 1 + e for d, k, e in zip(dilations, kernel, extra, strict=True)]
    x = rng.integers(-255, 256, (images, *size, channels)).astype(dtype)
    w = rng.integers(-127, 128, (*kernel, 1, channels)).astype(dtype)
    actual = conv2d(Images.of(x), w, strides, dilations, channels)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, one_by_one(x, w, strides, dilations))


@pytest.mark.slow
def test_large_images_are_computed_in_parts_of_the_same_values() -> None:
    rng = np.random.default_rng(0)
    for channels in (8, MANY_CHANNELS):
        x = rng.integers(-9, 10, (1, 90, 300, channels)).astype(np.float32)
        w = rng.integers(-9, 10, (3, 3, 1, channels)).astype(np.float32)
        shapes: list[int] = []

        def noted(sums: Array, part: object, shapes: list[int] = shapes) -> Array:
            shapes.append(sums.shape[1])
            return sums

        actual = conv2d(Images.of(x), w, (1, 1), (1, 1), channels, noted)
        assert len(shapes) > 1
        np.testing.assert_array_equal(actual, one_by_one(x, w, (1, 1), (1, 1)))
