"""Weights in groups: errors of rounding, and what GPTQ gains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.ops.groupwise import PackedWeights, unpack_codes
from quantglow.quantization.groupwise import (
    batches,
    input_moments,
    pack_weights,
    round_by_moments,
    search_grid,
)
from quantglow.support.arrays import Array
from tests.support.builder import Builder
from tests.support.effort import moderate

seeds = st.integers(0, 9999)
forms = st.tuples(st.sampled_from([4, 8]), st.sampled_from([16, 32, 64]), st.booleans())


def reals(packed: PackedWeights, depth: int) -> Array:
    """The weights [K, N] that codes stand for."""
    codes = unpack_codes(packed.codes, packed.bits).astype(np.float32)
    middle = np.full((1, 1), 2 ** (packed.bits - 1), np.float32)
    points = middle if packed.zero_points is None else packed.zero_points.astype(np.float32)
    actual: Array = (codes - points[..., None]) * packed.scales[..., None]
    return actual.reshape(len(codes), -1).T[:depth]


def drawn(seed: int, depth: int, columns: int) -> Array:
    rng = np.random.default_rng(seed)
    w = rng.standard_t(4, (depth, columns)) * np.exp(rng.normal(0, 2, (1, columns)))
    w[:, rng.random(columns) < 0.1] = 0
    return w.astype(np.float32)


@moderate
@given(forms, st.integers(1, 70), st.integers(1, 9), seeds)
def test_no_weight_is_further_than_its_group_allows(
    form: tuple[int, int, bool], depth: int, columns: int, seed: int
) -> None:
    bits, group, symmetric = form
    w = drawn(seed, depth, columns)
    packed = pack_weights(w, bits, group, symmetric)
    assert packed.codes.shape == (columns, -(-depth // group), group * bits // 8)
    padded = np.pad(w, ((0, -depth % group), (0, 0))).T.reshape(columns, -1, group)
    actual = np.pad(reals(packed, depth), ((0, -depth % group), (0, 0))).T.reshape(padded.shape)
    error = np.sqrt(np.square(padded - actual).mean(axis=2))
    spread = padded.max(axis=2).clip(0) - padded.min(axis=2).clip(None, 0)
    steps = 2 ** (bits - 1) if symmetric else 2**bits - 1
    assert (error <= 0.5 * 2 * spread / steps + 1e-30).all()


@pytest.mark.parametrize("symmetric", [False, True])
def test_zeros_stay_zeros(symmetric: bool) -> None:
    packed = pack_weights(np.zeros((40, 3), np.float32), 4, 16, symmetric)
    np.testing.assert_array_equal(reals(packed, 40), 0)


@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_of_few_bits_are_kept_exactly(symmetric: bool) -> None:
    """Codes and their group's scale come back, where the group takes all of its range."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (6, 2, 32)).astype(np.float32)
    codes[..., 0], codes[..., 1] = 0, 15
    scales = rng.uniform(0.1, 2, (6, 2, 1)).astype(np.float32)
    w = ((codes - 8) * scales).reshape(6, -1).T
    actual = reals(pack_weights(w, 4, 32, symmetric), 64)
    np.testing.assert_allclose(actual, w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_moments_lower_the_error_of_the_product(bits: int, symmetric: bool) -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(400, 96)) @ rng.normal(size=(96, 96))).astype(np.float32)
    w = drawn(1, 96, 24)
    errors = []
    for moments in (None, x.T @ x):
        actual = reals(pack_weights(w, bits, 32, symmetric, moments), 96)
        errors.append(float(np.square(x @ (w - actual)).sum()))
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_data_errors_of_large_weights_count_for_more(symmetric: bool) -> None:
    """The plain squared error would clip them: their errors would be larger."""
    w = np.random.default_rng(2).standard_t(4, (64, 200, 1)).astype(np.float32)
    groups = np.ascontiguousarray(w.transpose(1, 2, 0))
    largest = np.argmax(np.abs(groups), axis=2, keepdims=True)
    errors = []
    for importance in (None, np.ones((1, 64), np.float32)):
        grid = search_grid(groups, 4, symmetric, importance)
        error = np.take_along_axis(groups - grid.reals(grid.codes(groups)), largest, 2)
        errors.append(float(np.square(error).mean()))
    assert errors[0] < 0.5 * errors[1]


def test_no_channel_is_worse_than_rounded_to_the_nearest() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(8, 64)).astype(np.float32)
    groups = rng.normal(size=(40, 2, 32)).astype(np.float32)
    grid = search_grid(groups, 4, True, np.ones((2, 32), np.float32))
    metric = x.T @ x
    codes = round_by_moments(groups, grid, metric)
    metric += np.eye(64, dtype=np.float32) * (0.01 * np.trace(metric) / 64)
    errors = [
        np.einsum("nk,kj,nj->n", e, metric, e)
        for e in ((groups - grid.reals(c)).reshape(40, -1) for c in (codes, grid.codes(groups)))
    ]
    assert (errors[0] <= errors[1] * (1 + 1e-4)).all()


@pytest.mark.parametrize("scale", [0, 1e-22])
def test_inputs_of_zeros_leave_the_nearest_codes(scale: float) -> None:
    """As behind a Relu that no sample passes."""
    rng = np.random.default_rng(7)
    x = (scale * rng.normal(size=(8, 64))).astype(np.float32)
    groups = rng.normal(size=(40, 2, 32)).astype(np.float32)
    grid = search_grid(groups, 4, True, np.ones((2, 32), np.float32))
    np.testing.assert_array_equal(round_by_moments(groups, grid, x.T @ x), grid.codes(groups))


def test_moments_of_values_by_name() -> None:
    b = Builder()
    x = b.input(3, 8)
    graph = b.graph(x)
    feeds = {x.name: np.arange(24, dtype=np.float32).reshape(3, 8)}
    (actual,) = input_moments({x.name: 8, "unknown": 4}, [feeds, feeds], lambda _: graph)
    np.testing.assert_allclose(actual[x.name], 2 * feeds[x.name].T @ feeds[x.name])
    assert "unknown" not in actual


def test_moments_that_need_much_memory_are_summed_one_after_the_other() -> None:
    depths = {"a": 12_000, "b": 12_000, "c": 8, "d": 20_000}
    assert list(batches(depths)) == [["a"], ["b", "c"], ["d"]]
