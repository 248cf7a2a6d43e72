"""Values of float runs that several stages ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from quantglow.api.pipeline.samples import Samples
from quantglow.interpreter import interpret
from quantglow.interpreter.stacks import interpret_together
from quantglow.ir.graph.family import Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops.native import computing_with
from quantglow.profiling import Histogram, profile
from quantglow.quantization.equalize import sample_statistics as float_runs
from quantglow.quantization.equalize.equalization import equalization_factors, rescale
from quantglow.quantization.equalize.sample_statistics import FloatRuns, RescaledValues, Values
from quantglow.runtime.native.array_ops import array_kernels
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each, side_by_side
from tests.unit.quantization.quantization_networks import reach_of, samples_for, small_cnn

Calls = list[object]


class CollectedValues:
    """Keeps what it sees: for each value an array for each sample."""

    def __init__(self, graph: Graph) -> None:
        self.sizes = {n.name: n.type.shape[0] for n in graph.nodes if not isinstance(n, Constant)}
        self.names = self.sizes.keys()
        self.collected: dict[str, list[Array]] = {name: [] for name in self.names}

    def part(self, name: str, value: Array) -> Array:
        return value

    def add(self, parts: Values) -> None:
        for name, value in parts.items():
            self.collected[name] += np.split(value, len(value) // self.sizes[name])

    @property
    def values(self) -> list[Values]:
        """The values of each sample."""
        assert len({len(arrays) for arrays in self.collected.values()}) == 1
        rows = zip(*self.collected.values(), strict=True)
        return [dict(zip(self.collected, row, strict=True)) for row in rows]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The samples that were run."""
    collected: Calls = []

    def counted(graph: Graph, feeds: Any, listeners: Any = ()) -> object:
        collected.append(feeds)
        return interpret(graph, feeds, listeners)

    def together(graph: Graph, samples: Any, listeners: Any) -> None:
        collected.extend(samples)
        interpret_together(graph, samples, listeners)

    monkeypatch.setattr(float_runs, "interpret", counted)
    monkeypatch.setattr(float_runs, "interpret_together", together)
    return collected


def test_a_sample_is_run_once(calls: Calls) -> None:
    graph = small_cnn()
    data = samples_for(graph, 3)
    runs = FloatRuns(graph)
    runs.collect(data, CollectedValues(graph))
    actual = runs.results(data[1], [node for _, node in graph.outputs])
    np.testing.assert_array_equal(actual[0], interpret(graph, data[1])[0])
    assert len(calls) == 3


def test_a_sample_is_run_once_for_all_statistics(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float_runs, "KEPT_NBYTES", 0)
    graph = small_cnn()
    data = samples_for(graph, 3)
    FloatRuns(graph).collect(data, one := CollectedValues(graph), other := CollectedValues(graph))
    assert len(calls) == 3
    for a, b in zip(one.values, other.values, strict=True):
        assert all(np.shares_memory(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("nbytes", "together"), [(2**30, 3), (0, 1)])
def test_samples_run_side_by_side_where_memory_has_room(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, together: int
) -> None:
    """Five samples in three groups of two threads: 2, 2 and 1; without memory one by one."""
    monkeypatch.setattr(float_runs, "TOGETHER_NBYTES", nbytes)
    graph = small_cnn()
    data = samples_for(graph, 5)
    sizes: list[int] = []

    def noted(function: Any, items: Any) -> Any:
        sizes.append(len(items))
        return each(function, items)

    monkeypatch.setattr(float_runs, "each", noted)
    observed = CollectedValues(graph)
    with computing_with(array_kernels()):
        with threadpool_limits(2, user_api="blas"), side_by_side():
            FloatRuns(graph).collect(data, observed)
        assert max(sizes) == together
        for feeds, values in zip(data, observed.values, strict=True):
            FloatRuns(graph).collect([feeds], alone := CollectedValues(graph))
            assert all(np.array_equal(values[name], alone.values[0][name]) for name in values)


def test_beyond_the_memory_samples_are_run_again_with_the_same_result(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_cnn()
    data = samples_for(graph, 3)
    with computing_with(array_kernels()):
        runs = FloatRuns(graph)
        kept = CollectedValues(graph)
        runs.collect(data, kept)
        runs.collect(data, kept)
        monkeypatch.setattr(float_runs, "KEPT_NBYTES", 0)
        runs = FloatRuns(graph)
        runs.collect([*data, *data], again := CollectedValues(graph))
    for one, other in zip(kept.values, again.values, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len(calls) == 3 + 6
    assert runs.cached == []


def test_histograms_are_those_of_the_rescaled_graph() -> None:
    graph = small_cnn()
    data = samples_for(graph, 4)
    factors = equalization_factors(graph, reach_of(graph, data), ("equalize-channels",))
    observed: dict[str, Histogram] = {}

    def record(node: Any, value: Any) -> None:
        if node.name in factors:
            observed[node.name] = observed.get(node.name, Histogram()).merge(Histogram.of(value))

    for feeds in data:
        interpret(rescale(graph, factors), feeds, [record])
    FloatRuns(graph).collect(data, rescaled_values := RescaledValues(graph, factors))
    actual = rescaled_values.histograms
    assert factors and actual.keys() == observed.keys()
    for name, histogram in actual.items():
        ends = (histogram.minimum, histogram.maximum)
        assert ends == pytest.approx(
            (observed[name].minimum, observed[name].maximum), rel=1e-4, abs=1e-5
        )
        assert histogram.count == observed[name].count


def test_factors_that_stay_keep_their_constants() -> None:
    graph = small_cnn()
    factors = equalization_factors(
        graph, reach_of(graph, samples_for(graph, 4)), ("equalize-channels",)
    )
    whole = rescale(graph, factors)
    fewer = {name: value for name, value in factors.items() if name != "c2"}
    assert len(fewer) == len(factors) - 1
    fresh, reused = rescale(graph, fewer), rescale(graph, fewer, (whole, factors))
    for one, other in zip(fresh.nodes, reused.nodes, strict=True):
        assert one.name == other.name
        assert not hasattr(one, "w") or np.array_equal(one.w.value, other.w.value)
    known = {id(node) for node in whole.nodes}
    assert any(id(node.w) in known for node in reused.nodes if hasattr(node, "w"))


def test_the_profiling_run_serves_the_next_stage(calls: Calls) -> None:
    graph = small_cnn()
    family = Family.of(graph)
    samples = Samples(samples_for(graph, 3), family)
    profile(family, samples, progress=False, run=samples.run)
    runs = samples.take_runs(family.fitting(samples.recent[-1]))
    assert runs is not None
    runs.collect(samples.first, CollectedValues(graph))
    assert len(calls) == 3
    assert samples.take_runs(graph) is None
