"""Matrices of Fourier transforms are recognised, and made anew bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.importer.onnx.operators.math.fourier import Transform
from quantglow.support.arrays import Array
from quantglow.support.fourier import FourierMatrix, recognize


def hann(n: int) -> Array:
    return np.hanning(n + 1)[:-1].astype(np.float32)


@st.composite
def transforms(draw: st.DrawFn) -> Transform:
    """Transforms as DFT and STFT have them."""
    n = draw(st.integers(8, 96))
    samples = draw(st.sampled_from([n, n - n // 4]))
    window = draw(st.sampled_from([np.ones(samples), hann(samples)]))
    kind = draw(st.sampled_from(["real", "complex", "inverse", "to real"]))
    if kind == "to real":
        halves = np.arange(n // 2 + 1)
        return Transform(n, n, np.where(halves * 2 % n == 0, 1.0, 2.0), (2, 1), 1, 1 / n)
    if kind == "inverse":
        return Transform(n, n, np.ones(samples), (2, 2), 1, 1 / n)
    bins = draw(st.sampled_from([n, n // 2 + 1]))
    return Transform(n, bins, window, (1 if kind == "real" else 2, 2))


@given(transforms(), st.booleans())
def test_the_matrix_of_a_transform_is_made_anew(transform: Transform, is_kernel: bool) -> None:
    dense = transform.dense().astype(np.float32)
    shape = (1, *dense.shape[:2], -1) if is_kernel else (dense.shape[0] * dense.shape[1], -1)
    actual = recognize(dense.reshape(shape))
    assert actual is not None
    windowed, table = actual
    assert windowed.elements(table).tobytes() == dense.tobytes()


@pytest.mark.parametrize(("n", "a"), [(64, 8), (72, 9), (400, 20), (2048, 32)])
@pytest.mark.parametrize(("bins", "parts"), [("all", (1, 2)), ("half", (1, 2)), ("all", (2, 2))])
def test_the_matrices_of_two_stages_are_made_anew(
    n: int, a: int, bins: str, parts: tuple[int, int]
) -> None:
    transform = Transform(n, n if bins == "all" else n // 2 + 1, np.ones(n), parts)
    first, second = transform.first_stage(a), transform.second_stage(a)
    stages = (first.reshape(a * parts[0], -1), second.reshape(a, n // a * 2, -1))
    for stage in stages:
        built = recognize(stage.astype(np.float32))
        assert built is not None
        assert built[0].elements(built[1]).tobytes() == stage.astype(np.float32).tobytes()


@pytest.mark.parametrize("change", [np.nextafter(np.float32(0.5), np.float32(1)), 0.0, 2.0])
def test_one_other_element_makes_it_no_transform(change: float) -> None:
    dense = Transform(16, 9, hann(16), (1, 2)).dense().astype(np.float32).reshape(16, 18)
    dense[-1, -2] = change
    assert recognize(dense) is None


def test_random_weights_are_no_transform() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 66)).astype(np.float32)
    assert recognize(weights) is None


@pytest.mark.parametrize(
    "sizes", [(0, 8, 8, (1, 2)), (8, 0, 8, (1, 2)), (8, 8, 8, (3, 2)), (8, 8, 8, (1, 2), 2)]
)
def test_there_are_no_matrices_of_such_sizes(sizes: tuple[int, int, int, tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="there is no"):
        FourierMatrix(*sizes)
