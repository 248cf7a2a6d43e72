"""Errors of candidate types: those of each type alone, and their energies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops.arithmetic import round_reals, saturate
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.quantization.search import reader_errors
from quantglow.quantization.search.range_errors import (
    Energies,
    Grids,
    energies,
    in_halves,
    products,
    relative,
)

TYPES = [
    ElementType(DType.I8, QuantParams.per_tensor(0.05, 3)),
    ElementType(DType.I8, QuantParams.per_tensor(0.3, -128)),
    ElementType(DType.I16, QuantParams.per_tensor(1e-3, 0)),
]


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_the_errors_of_all_candidates_are_those_of_each_alone(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32).reshape(-1, 1)
    with np.errstate(all="ignore"):
        expected = [round_reals(values, element) - values for element in TYPES]
        actual = Grids.of(TYPES).errors(values)
    np.testing.assert_array_equal(actual, expected)


def test_no_number_becomes_the_lowest_integer() -> None:
    steps = np.array([1.5, math.nan, -math.inf, 900.0], np.float32)
    assert saturate(steps, TYPES[0], -128, 127).tolist() == [5, -128, -128, 127]


@pytest.mark.parametrize(("group", "outputs"), [(1, 5), (4, 1), (2, 3)])
def test_products_are_those_of_each_candidate_and_group(group: int, outputs: int) -> None:
    rng = np.random.default_rng(0)
    columns = rng.integers(-9, 9, (3, group, 7, 6)).astype(np.float32)
    weights = rng.integers(-9, 9, (group, 6, outputs)).astype(np.float32)
    np.testing.assert_array_equal(products(columns, weights), columns @ weights)


def test_energies_of_a_sample_leave_out_the_means_of_its_channels() -> None:
    signal = np.array([[[[1.0, 5.0], [3.0, 5.0]]]], np.float32)
    actual = Energies.of(signal, np.stack([signal, 2 * signal]))
    assert (actual.signal, actual.errors.tolist()) == (2.0, [2.0, 8.0])


def test_energies_of_several_samples_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    signal = rng.normal(2, 1, (3, 4, 6, 5)).astype(np.float32)
    errors = rng.normal(1, 1, (2, 3, 4, 6, 5)).astype(np.float32)
    whole = Energies.of(signal, errors)
    each = [Energies.of(signal[[s]], errors[:, [s]]) for s in range(3)]
    summed = Energies.sum(each)
    assert whole.signal == pytest.approx(summed.signal)
    np.testing.assert_allclose(whole.errors, summed.errors)


def test_a_single_row_keeps_its_mean() -> None:
    assert energies(np.full((1, 1, 1, 3), 2.0, np.float32), centered=False).tolist() == [12.0]


def test_errors_are_relative_to_the_signal_of_each_half() -> None:
    parts = [Energies(float(size), np.array([size / 2])) for size in (2, 4, 6)]
    assert relative(in_halves(3), parts).tolist() == [[0.5], [0.5]]
    assert relative(in_halves(1), parts[:1]).tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize("together", [1, 3])
def test_halves_have_every_other_sample(together: int) -> None:
    parts = in_halves(9, together)
    assert max(map(len, parts)) == together
    for half in (0, 1):
        ours = [sample for part in parts if part.start % 2 == half for sample in part]
        assert ours == list(range(half, 9, 2))


@pytest.mark.parametrize(("share", "groups"), [(1, 1), (2.5, 3), (100, 8)])
def test_groups_are_as_far_apart_as_their_work_needs(share: float, groups: int) -> None:
    """One group in three where all of them take 2.5 times the work allowed."""
    work = int(share * reader_errors.WORK)
    assert reader_errors.groups_apart(8, work) == groups
