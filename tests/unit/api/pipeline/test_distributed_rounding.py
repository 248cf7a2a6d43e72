"""Accuracy recovery by the workers of a Dask cluster gives one graph, whichever workers die."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.api.pipeline import distributed_rounding
from quantglow.api.pipeline.distributed_rounding import SHARD, ClusterRuns
from quantglow.api.pipeline.request import computing
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import COMPILED
from quantglow.quantization.quantizer import quantize
from quantglow.quantization.rounding.moments import Moments
from quantglow.quantization.rounding.sample_runs import Ends, RoundingTask, SampleRuns
from quantglow.quantization.rules import Operands
from quantglow.support import extras as clusters
from quantglow.support.arrays import Array
from tests.unit.api.pipeline.test_distributed import client, kill_one
from tests.unit.quantization.quantization_networks import samples_for, small_cnn

__all__ = ["client"]

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, of its sockets

GRAPH = small_cnn()
SAMPLES = samples_for(GRAPH, 2 * SHARD + 3)
PROFILE = qg.profile(GRAPH, SAMPLES, progress=False)
PLAIN = qg.QuantizationConfig(equalization=(), calibrate_method="minmax")


class Shards:
    """Runs of all shards in this process."""

    def __init__(self, task: RoundingTask, samples: Sequence[Feeds], int8: Sequence[Feeds]) -> None:
        parts = [slice(first, first + SHARD) for first in range(0, len(samples), SHARD)]
        count = len(samples)
        self.runs = [SampleRuns(task, samples[p], int8[p], count, p.start) for p in parts]

    def statistics(self, name: str) -> tuple[Moments, ...]:
        actual = [runs.statistics(name) for runs in self.runs]
        return tuple(reduce(add, moments) for moments in zip(*actual, strict=True))

    def prefetch(self) -> None:
        for runs in self.runs:
            runs.prefetch()

    def improve(self, name: str, operands: Operands) -> None:
        for runs in self.runs:
            runs.improve(name, operands)

    def ends(self) -> tuple[Ends, Ends]:
        pairs = [runs.ends() for runs in self.runs]
        actual = [item for part, _ in pairs for item in part]
        return actual, [item for _, part in pairs for item in part]

    def end(self) -> None:
        pass


def constants_of(graph: Graph) -> dict[str, Array]:
    return {node.name: node.value for node in graph.nodes if isinstance(node, Constant)}


def assert_equal(one: Graph, other: Graph) -> None:
    actual, expected = constants_of(one), constants_of(other)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def by_shards(config: qg.QuantizationConfig) -> Graph:
    with computing(COMPILED):
        return quantize(GRAPH, PROFILE, config, data=SAMPLES, begin=Shards)


@pytest.fixture(scope="module")
def expected_graph() -> Graph:
    """The graph from shards in this process."""
    return by_shards(PLAIN)


def test_workers_give_the_graph_of_one_process(client: Any, expected_graph: Graph) -> None:
    assert_equal(qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client), expected_graph)


def test_one_shard_gives_the_graph_without_a_cluster(client: Any) -> None:
    data = SAMPLES[:SHARD]
    quantized = qg.quantize(GRAPH, PROFILE, PLAIN, data, client=client)
    assert_equal(quantized, qg.quantize(GRAPH, PROFILE, PLAIN, data))


def test_shards_are_those_of_all_samples(expected_graph: Graph) -> None:
    """Sums of other parts differ in their last bits only: few weights round to another integer."""
    whole = constants_of(qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES))
    for name, value in constants_of(expected_graph).items():
        apart = np.abs(value.astype(np.float64) - whole[name])
        assert (apart > 0).mean() <= 0.01, name


def test_int16_is_chosen_by_the_same_ends(client: Any) -> None:
    config = qg.QuantizationConfig(
        equalization=(), calibrate_method="minmax", int16_activations="auto"
    )
    quantized = qg.quantize(GRAPH, PROFILE, config, SAMPLES, client=client)
    assert_equal(quantized, by_shards(config))


class Deadly(ClusterRuns):
    """A worker dies before each layer."""

    deaths: list[int] = []  # noqa: RUF012 - of the class

    def statistics(self, name: str) -> tuple[Moments, ...]:
        self.deaths.append(kill_one(self.client))
        return super().statistics(name)


@pytest.mark.slow
def test_workers_that_die_lose_nothing(
    client: Any, expected_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantglow.api import quantize

    monkeypatch.setattr(quantize, "ClusterRuns", Deadly)
    quantized = qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client)
    assert len(set(Deadly.deaths)) >= 2
    assert_equal(quantized, expected_graph)


class Wandering(ClusterRuns):
    """The shards change their worker before each layer, and find the runs they left there."""

    def statistics(self, name: str) -> tuple[Moments, ...]:
        self.client.wait_for_workers(2)  # an earlier test may have killed one
        workers = sorted(self.client.scheduler_info()["workers"])
        self.places = {
            index: next(other for other in workers if other != place)
            for index, place in self.places.items()
        }
        return super().statistics(name)


def test_runs_that_missed_a_layer_begin_again(
    client: Any, expected_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantglow.api import quantize

    monkeypatch.setattr(quantize, "ClusterRuns", Wandering)
    assert_equal(qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client), expected_graph)


def test_nothing_is_left_in_the_workers(client: Any) -> None:
    qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client)
    assert set(client.run(runs_left).values()) == {0}


def runs_left() -> int:
    return len(distributed_rounding.RUNS)


def test_runs_that_a_worker_has_dropped_begin_again(
    client: Any, expected_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.run(keep_one)
    try:
        assert_equal(qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client), expected_graph)
    finally:
        client.run(keep_many)


def keep_one() -> None:
    distributed_rounding.KEPT = 1


def keep_many() -> None:
    distributed_rounding.KEPT = 256


@pytest.mark.slow
def test_samples_that_kill_every_worker_are_named(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_rounding, "LIVES", 1)
    monkeypatch.setattr(distributed_rounding, "answer", abort)
    monkeypatch.setattr(clusters, "ABSENT_SECONDS", 120.0)  # a busy machine restarts them slowly
    with pytest.raises(qg.BackendError, match=r"samples 0 to 7: workers that ran them died"):
        qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=client)


def abort(*operands: Any) -> None:
    """End the process."""
    os.abort()


@pytest.mark.parametrize(
    ("config", "data"),
    [(PLAIN, None), (qg.QuantizationConfig(recovery=()), SAMPLES)],
    ids=["no samples", "no recovery"],
)
def test_a_client_needs_something_to_run(
    client: Any, config: qg.QuantizationConfig, data: Any
) -> None:
    with pytest.raises(qg.OptionError, match="client runs the samples of accuracy recovery"):
        qg.quantize(GRAPH, PROFILE, config, data, client=client)


def test_other_clients_are_refused() -> None:
    with pytest.raises(qg.OptionError, match=r"client must be a dask\.distributed\.Client"):
        qg.quantize(GRAPH, PROFILE, PLAIN, SAMPLES, client=3)
