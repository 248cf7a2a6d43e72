"""Float convolutions with fewer products: the same results up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Conv
from quantglow.ir.ops.work import count_macs
from quantglow.transforms.lowering import lower
from quantglow.transforms.lowering.minimal_filtering import minimal_filtering
from quantglow.transforms.lowering.symmetry import fold_symmetric_filters, fold_symmetric_products
from quantglow.transforms.lowering.trimming import cut_unread_columns
from tests.generators.float_graphs.filters import bank, matrix_product, three_taps, transform, waves
from tests.generators.values import activations
from tests.support.effort import moderate
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of


def assert_lowers(graph: Graph) -> None:
    feeds = feeds_of(graph)
    lowered = lower(graph)
    lowered.verify()
    assert lower(lowered) is lowered
    assert_equal_values(interpret(lowered, feeds), interpret(graph, feeds), 2e-5, atol=2e-5)


def products(graph: Graph) -> int:
    return sum(count_macs(node) for node in graph.nodes if isinstance(node, Conv))


@moderate
@given(st.data())
def test_banks_of_symmetric_filters(data: st.DataObject) -> None:
    stride, taps = data.draw(st.integers(5, 40)), data.draw(st.integers(40, 90))
    even, odd = data.draw(st.sampled_from([(128, 0), (0, 129), (65, 66), (1, 127)]))
    w = bank(taps, even, odd, taps - data.draw(st.integers(0, 1)))
    w *= 1 + 1e-7 * np.random.default_rng(0).normal(size=w.shape).astype(np.float32)
    assert_lowers(transform(*data.draw(st.tuples(*[st.integers(1, 4)] * 2)), stride, w))


@moderate
@given(st.data())
def test_waves_about_a_quarter_of_their_period(data: st.DataObject) -> None:
    n, is_sine = data.draw(st.sampled_from([256, 512])), data.draw(st.booleans())
    window = data.draw(st.sampled_from([0, 0.5, 1]))
    samples = n // 2 + data.draw(st.integers(-1, 0)) + int(not is_sine and window != 1)
    w = waves(n, (samples, data.draw(st.integers(70, 140))), is_sine, window)
    images, biased = data.draw(st.tuples(*[st.integers(1, 3)] * 3)), data.draw(st.booleans())
    graph = matrix_product(images, w, biased)
    assert_lowers(graph)
    assert 1.9 * products(fold_symmetric_products(graph)) < products(graph)


@moderate
@given(st.data())
def test_filters_of_three_taps(data: st.DataObject) -> None:
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * 2))
    channels = data.draw(st.sampled_from([(48, 48), (49, 64), (64, 50)]))
    width, batch = data.draw(st.integers(3, 21)), data.draw(st.integers(1, 4))
    activation = data.draw(st.none() | activations())
    assert_lowers(three_taps(batch, width, channels, pads, activation))


def test_half_of_the_products_are_left() -> None:
    graph = three_taps(2, 16, (64, 64), (1, 1))
    assert 2 * products(minimal_filtering(graph)) == products(graph)


@pytest.mark.parametrize("total", [63, 64])
def test_symmetry_halves_the_products(total: int) -> None:
    graph = transform(2, 4, 16, bank(64, 65, 65, total))
    assert 1.9 * products(fold_symmetric_filters(graph)) < products(graph)


def test_columns_that_nobody_reads_have_no_products() -> None:
    graph = transform(2, 4, 16, bank(64, 64, 64, 64))
    assert 6 * products(cut_unread_columns(graph)) == 4 * products(graph)


@pytest.mark.parametrize(
    "graph",
    [
        three_taps(1, 12, (64, 64), (1, 1)),
        three_taps(4, 40, (47, 64), (1, 1)),
        three_taps(64, 1025, (48, 64), (1, 1)),
    ],
    ids=["few-pixels", "few-channels", "much-memory"],
)
def test_where_it_does_not_pay_products_stay(graph: Graph) -> None:
    assert minimal_filtering(graph) is graph


def test_a_windowed_transform_has_a_quarter_of_the_products() -> None:
    times, bins = np.arange(256)[:, None], np.arange(129)
    turns = 2 * np.pi * times * bins / 256
    w = np.concatenate([np.cos(turns), np.sin(turns)], axis=1) * np.sin(np.pi * times / 256) ** 2
    graph = transform(2, 4, 64, np.asarray(w, np.float32)[None, :, None])
    folded = fold_symmetric_products(fold_symmetric_filters(graph))
    assert 3.8 * products(folded) < products(graph)


@pytest.mark.parametrize("spoiled", [np.nan, np.inf, 0.25])
def test_products_without_symmetry_stay(spoiled: float) -> None:
    w = waves(256, (127, 128), True, 0.5)
    w[3, 5] = spoiled
    graph = matrix_product((1, 2, 3), w, False)
    assert fold_symmetric_products(graph) is graph


def test_filters_without_symmetry_stay() -> None:
    w = np.random.default_rng(0).normal(size=(1, 64, 1, 128)).astype(np.float32)
    graph = transform(1, 2, 16, w)
    assert fold_symmetric_filters(graph) is graph
