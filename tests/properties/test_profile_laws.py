"""Profiles do not depend on the split, the order or the distribution of the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from threadpoolctl import threadpool_limits

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.ops import Add, Relu
from quantglow.ir.ops.native import NativeOps, computing_with
from quantglow.ir.types import f32
from quantglow.profiling import RANGE_METHODS, Histogram, Profile, choose_range, profile
from quantglow.profiling.histogram import BINS, bin_exponent
from quantglow.runtime.native.array_ops import array_kernels
from quantglow.support.arrays import Array
from tests.generators.float_graphs.networks import fused_networks, networks
from tests.support.effort import moderate

values = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 3.4028234663852886e38]),
)
arrays = hnp.arrays(np.float32, st.integers(0, 40), elements=values)


@given(arrays, arrays)
def test_merging_is_counting_together(a: Array, b: Array) -> None:
    assert Histogram.of(a).merge(Histogram.of(b)) == Histogram.of(np.concatenate([a, b]))


@given(arrays, arrays, arrays)
def test_merging_is_associative_and_commutative(a: Array, b: Array, c: Array) -> None:
    x, y, z = map(Histogram.of, (a, b, c))
    assert x.merge(y).merge(z) == z.merge(x).merge(y) == x.merge(z.merge(y))


@given(arrays)
def test_order_is_forgotten(a: Array) -> None:
    assert Histogram.of(a) == Histogram.of(a[::-1]) == Histogram.of(np.sort(a))


@given(arrays)
def test_counts_are_where_the_values_are(a: Array) -> None:
    h = Histogram.of(a)
    expected, _ = np.histogram(a.astype(np.float64), bins=h.edges) if len(a) else ([], None)
    # np.histogram closes the last bin; Histogram's ends at the next multiple, above every value.
    assert list(h.counts) == list(expected)
    assert len(h.counts) <= BINS


@given(values, values)
def test_the_bin_width_is_the_smallest_that_fits(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    exponent = bin_exponent(low, high)
    finer = [np.floor(np.ldexp(x, 1 - exponent)) for x in (low, high)]
    useless = exponent <= np.frexp(max(abs(low), abs(high)))[1] - 24 or exponent == -149
    assert useless or finer[1] - finer[0] >= BINS


@given(arrays.filter(len), st.sampled_from(sorted(RANGE_METHODS)), st.booleans())
def test_a_chosen_range_contains_zero_and_lies_within_the_values(
    a: Array, method: str, symmetric: bool
) -> None:
    chosen = choose_range(Histogram.of(a), method, 99.0, symmetric)
    assert min(a.min(), 0) <= chosen.low <= 0 <= chosen.high <= max(a.max(), 0)


def network() -> Graph:
    x = Input(name="x", tensor=f32(2, 3))
    return Graph(
        inputs=(x,),
        outputs=(("y", Relu(name="y", x=Add(name="s", x=x, y=x))),),
        source_hash="network",
    )


@moderate
@given(
    hnp.arrays(np.float32, (12, 3), elements=st.floats(-100, 100, width=32)),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
    st.permutations(range(6)),
)
def test_a_profile_does_not_depend_on_batch_split_order_or_machine(
    data: Array, sizes: list[int], order: list[int]
) -> None:
    rows = data.reshape(6, 2, 3)[order].reshape(12, 3)
    cuts = np.minimum(np.cumsum(sizes) * 2, 12)
    batches = [b for b in np.split(rows, cuts) if len(b)]
    whole = profile(network(), data, progress=False)
    parts = [profile(network(), [batch], progress=False) for batch in batches]
    assert profile(network(), batches, progress=False) == whole == Profile.merged(parts)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("ops", [None, array_kernels()], ids=["interpreter", "compiled"])
def test_a_profile_does_not_depend_on_threads_or_on_an_array_filled_again(
    threads: int, ops: NativeOps | None
) -> None:
    rows = np.random.default_rng(0).standard_normal((7, 2, 3)).astype(np.float32)

    def refilled() -> Iterator[dict[str, Array]]:
        array = np.empty((2, 3), np.float32)
        for row in rows:
            array[:] = row
            yield {"x": array}

    with computing_with(ops):
        expected = Profile.merged([profile(network(), [row], progress=False) for row in rows])
        with threadpool_limits(threads, user_api="blas"):
            assert profile(network(), refilled(), progress=False) == expected


@moderate
@given(st.one_of(networks(), fused_networks()), st.integers(0, 99))
def test_a_compiled_profile_is_the_interpreted_one_up_to_float_sums(
    graph: Graph, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [
        {
            node.name: rng.standard_normal(node.type.shape).astype(np.float32)
            for node in graph.inputs
        }
        for _ in range(3)
    ]
    interpreted = profile(graph, samples, progress=False)
    with computing_with(array_kernels()):
        compiled = profile(graph, samples, progress=False)
    assert interpreted.histograms.keys() == compiled.histograms.keys()
    for name, expected in interpreted.histograms.items():
        actual = compiled.histograms[name]
        assert actual.count == expected.count
        reach = max(abs(expected.minimum), abs(expected.maximum))
        ends = [(actual.minimum, expected.minimum), (actual.maximum, expected.maximum)]
        assert all(abs(one - other) <= 1e-4 * reach + 1e-5 for one, other in ends), name
