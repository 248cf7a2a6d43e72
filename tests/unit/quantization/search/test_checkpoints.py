"""Runs of plans that go on where the run of another plan was."""

from __future__ import annotations

import numpy as np
import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.profiling import Range, profile
from quantglow.quantization.equalize.equalization import rescale
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.search import fake_quantization as checkpoints
from quantglow.quantization.search.fake_quantization import (
    Checkpoints,
    RunCheckpoints,
    compared_nodes,
    execution,
    relative_noise,
    state_nbytes,
)
from quantglow.support.arrays import Array
from tests.unit.quantization.quantization_networks import (
    compared_values,
    conv,
    graph_of,
    image,
    samples_for,
)

AUTO = QuantizationConfig()
LAYERS = 8


def chain() -> Graph:
    x = image(8, 6)
    node = conv("layer0", x, 8, low=0.0)
    for index in range(1, LAYERS):
        residual = node if index % 3 == 2 else None
        node = conv(f"layer{index}", node, 8, residual=residual, low=0.0)
    return graph_of(node, inputs=(x,))


def plans(*changed: str, config: QuantizationConfig = AUTO) -> list[Plan]:
    """The plan of the chain, and plans in each of which one value has another range."""
    graph = chain()
    profiled = profile(graph, samples_for(graph, 3), progress=False)
    ranges = [{}, *({name: Range(0.0, 0.1)} for name in changed)]
    return [make_plan(graph, profiled, config, chosen) for chosen in ranges]


def noises(actual: list[Plan], kept: Checkpoints | None) -> list[float]:
    data = samples_for(actual[0].graph, 3)
    expected = [compared_values(actual[0].graph, feeds) for feeds in data]
    recorded = []
    for plan in actual:
        recorded.append(relative_noise(plan, data, expected, False, kept))
        if kept is not None:
            kept.keep()
    return recorded


def begun(first: Plan, then: Plan) -> int | None:
    """Position at which the run of the second plan begins after one of the first."""
    (feeds,) = samples_for(first.graph, 1)
    before, running = RunCheckpoints(first, 2**20), execution(first, [feeds], {})
    for _ in running:
        before.add(running)
    state = RunCheckpoints(then, 2**20, before).resume(compared_nodes(then.graph))
    return None if state is None else state.position


@pytest.mark.parametrize("config", [AUTO, QuantizationConfig(ignored_scope=["layer3"])])
def test_noise_is_the_same_wherever_a_run_begins(config: QuantizationConfig) -> None:
    actual = plans("layer6", "layer1", "layer4", "layer4", "x", config=config)
    assert noises(actual, Checkpoints()) == noises(actual, None)


@pytest.mark.parametrize("name", ["layer2", "layer5"])
def test_a_run_begins_just_before_the_difference(name: str) -> None:
    first, then = plans(name)
    names = [node.name for node in first.graph.nodes]
    begin = begun(first, then)
    assert begin is not None
    assert names.index(f"layer{int(name[-1]) - 1}") < begin <= names.index(name)


def test_a_run_with_another_input_begins_at_the_start() -> None:
    assert begun(*plans("x")) is None


def test_states_take_no_more_than_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MAX_NBYTES", 3 * 5000)
    actual, kept = plans("layer6", "layer7"), Checkpoints()
    assert noises(actual, kept) == noises(actual, None)
    for run in kept.best:
        assert sum(state_nbytes(state) for state in run.states) <= 3 * 5000 // len(kept.best)


def test_graphs_that_are_rescaled_alike_share_their_nodes() -> None:
    graph = chain()
    one, other = np.arange(1, 9, dtype=np.float32), np.arange(9, 1, -1, dtype=np.float32)
    factors: dict[str, Array] = {"layer1": one, "layer2": one, "layer4": other, "layer5": other}
    whole = rescale(graph, factors)
    part = rescale(graph, {"layer1": one, "layer2": one}, (whole, factors))
    shared = [n.name for n in part.nodes if n in whole.nodes and not isinstance(n, Constant)]
    assert shared == ["x", "layer0", "layer1", "layer2", "layer3"]
