"""Errors of candidate types: those of each type alone, and their energies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ops.arithmetic import rounded_reals, saturate
from quantglow.quantization.search import range_choice
from quantglow.quantization.search.range_errors import Energies, Grids, energies, products, relative
from quantglow.types import DType, ElementType, QuantParams

TYPES = [
    ElementType(DType.I8, QuantParams.per_tensor(0.05, 3)),
    ElementType(DType.I8, QuantParams.per_tensor(0.3, -128)),
    ElementType(DType.I16, QuantParams.per_tensor(1e-3, 0)),
]


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_the_errors_of_all_candidates_are_those_of_each_alone(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32).reshape(-1, 1)
    with np.errstate(all="ignore"):
        wanted = [rounded_reals(values, element) - values for element in TYPES]
        found = Grids.of(TYPES).errors(values)
    np.testing.assert_array_equal(found, wanted)


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
    signal = np.array([[[1.0, 5.0], [3.0, 5.0]]], np.float32)
    found = Energies.of(signal, np.stack([signal, 2 * signal]))
    assert (found.signal, found.errors.tolist()) == (2.0, [2.0, 8.0])


def test_a_single_row_keeps_its_mean() -> None:
    assert energies(np.full((1, 1, 1, 3), 2.0, np.float32), centred=False).tolist() == [12.0]


def test_errors_are_relative_to_the_signal_of_each_half() -> None:
    parts = [Energies(float(size), np.array([size / 2])) for size in (2, 4, 6)]
    assert relative(parts).tolist() == [[0.5], [0.5]]
    assert relative(parts[:1]).tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize(("share", "groups"), [(1, 1), (2.5, 3), (100, 8)])
def test_samples_in_a_row_judge_all_groups_in_turn(share: float, groups: int) -> None:
    """One group in three where all of them take 2.5 times the work allowed."""
    work = int(share * range_choice.WORK)
    seen = [list(range(8))[range_choice.some_groups(8, work, sample)] for sample in range(groups)]
    assert sorted(group for some in seen for group in some) == list(range(8))
