"""``max_minutes`` ends recovery between layers and keeps those that are done.

Time is a clock that tests set: it passes where they say, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops.contraction import Contraction
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.quantization.rounding import RoundingCache, round_layers, sample_runs
from quantglow.quantization.search import levers
from quantglow.quantization.search import time_budget as choose_int16
from quantglow.support.processes import interrupts as deadline
from quantglow.support.processes.interrupts import Deadline
from tests.support.small_network import small_model, small_samples
from tests.unit.quantization.quantization_networks import samples_for, small_cnn
from tests.unit.quantization.search.test_choose_int16 import network

GRAPH = small_cnn()
DATA = samples_for(GRAPH, 8)
PLAIN: dict[str, Any] = {"calibrate_method": "minmax", "equalization": ()}
TECHNIQUES = ("round-weights", "correct-bias")


class Clock:
    """The time in seconds; ``passes`` makes calls of a function take some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(deadline, "time", self)

    def monotonic(self) -> float:
        return self.now

    def passes(self, owner: Any, name: str, seconds: Callable[[int], float]) -> list[float]:
        """The moments of the calls, of which the n-th takes ``seconds(n)``, from 1."""
        usual, calls = getattr(owner, name), list[float]()

        def timed(*arguments: Any, **named: Any) -> Any:
            calls.append(self.now)
            self.now += seconds(len(calls))
            return usual(*arguments, **named)

        self.monkeypatch.setattr(owner, name, timed)
        return calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def int8_graph(graph: Graph = GRAPH) -> Graph:
    profiled = profile(graph, samples_for(graph, 8), progress=False)
    return quantize_for_all_shapes(
        graph, profiled, QuantizationConfig(**PLAIN), progress=False
    ).graph


def weights(graph: Graph) -> dict[str, bytes]:
    """The integers of each layer."""
    layers = [node for node in graph.nodes if isinstance(node, Contraction)]
    return {
        node.name: b"".join(o.evaluate().tobytes() for o in (node.w, node.b) if o is not None)
        for node in layers
    }


def test_the_layers_done_before_the_deadline_stay_and_the_others_are_plain(clock: Clock) -> None:
    int8 = int8_graph()
    plain, whole = weights(int8), weights(round_layers(GRAPH, int8, DATA, TECHNIQUES).graph)
    calls = clock.passes(sample_runs, "LayerData", lambda call: 60.0)
    cut = round_layers(GRAPH, int8, DATA, TECHNIQUES, deadline=Deadline(90.0))
    assert calls == [0.0, 60.0]
    assert weights(cut.graph) == {
        name: (whole if index < 2 else plain)[name] for index, name in enumerate(plain)
    }
    assert cut.note == (
        "max_minutes ended accuracy recovery early: 4 of 6 layers have weights rounded to nearest"
    )
    assert not cut.int8_ends and not cut.float_ends


def test_without_time_no_layer_is_begun(clock: Clock) -> None:
    int8 = int8_graph()
    calls = clock.passes(sample_runs, "LayerData", lambda call: 0.0)
    cut = round_layers(GRAPH, int8, DATA, TECHNIQUES, deadline=Deadline(0.0))
    assert not calls
    assert weights(cut.graph) == weights(int8)
    assert ": 6 of 6 layers" in cut.note


def test_a_deadline_after_the_last_layer_is_not_noted(clock: Clock) -> None:
    clock.passes(sample_runs, "LayerData", lambda call: 60.0)
    cut = round_layers(GRAPH, int8_graph(), DATA, TECHNIQUES, deadline=Deadline(360.0))
    assert not cut.note


def test_a_later_run_goes_on_where_the_deadline_ended_the_first(clock: Clock) -> None:
    int8, cache = int8_graph(), RoundingCache()
    whole = round_layers(GRAPH, int8, DATA, TECHNIQUES).graph
    calls = clock.passes(sample_runs, "LayerData", lambda call: 60.0)
    round_layers(GRAPH, int8, DATA, TECHNIQUES, cache=cache, deadline=Deadline(90.0))
    remaining = round_layers(GRAPH, int8, DATA, TECHNIQUES, cache=cache)
    assert weights(remaining.graph) == weights(whole)
    assert len(calls) == len(weights(whole))


def test_a_deadline_in_the_recovery_with_int16_keeps_the_whole_one_without(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_int16, "INT16_BUDGET", 10.0)
    graph = network()
    samples = samples_for(graph, 6)
    profiled = profile(graph, samples, progress=False)

    def built(int16: Any, end: float) -> Any:
        config = QuantizationConfig(int16_activations=int16, **PLAIN)
        return quantize_for_all_shapes(
            graph, profiled, config, samples, False, deadline=Deadline(end)
        )

    plain = built((), 1e9)
    clock.passes(sample_runs, "LayerData", lambda call: 60.0)
    layers = len(weights(plain.graph))
    cut = built("auto", 60.0 * layers + 90.0)
    assert weights(cut.graph) == weights(plain.graph)
    (note,) = cut.notes
    assert note.startswith("max_minutes ended choosing int16 early")


def small(**options: Any) -> Any:
    return qg.quantize_and_compile(
        small_model(), small_samples(12), num_threads=1, progress=False, **options
    )


def cuts(model: Any) -> list[str]:
    return [note for note in model.report.notes if " early: " in note]


def test_max_minutes_ends_recovery_and_the_report_says_so(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.passes(sample_runs, "LayerData", lambda call: 61.0)
    built = small(max_minutes=1)
    said = "max_minutes are over: keeping the best so far (accuracy recovery)"
    assert capsys.readouterr().err.count(said) == 1
    assert cuts(built) == [
        "max_minutes ended accuracy recovery early: 1 of 2 layers have weights rounded to nearest"
    ]


def test_the_searches_before_recovery_leave_it_half_of_the_time(clock: Clock) -> None:
    clock.passes(levers, "choose_ranges", lambda call: 31.0)
    layers = clock.passes(sample_runs, "LayerData", lambda call: 10.0)
    built = small(max_minutes=1)
    assert layers == [31.0, 41.0]
    assert [note.partition(" early")[0] for note in cuts(built)] == [
        "max_minutes ended choosing ranges and scales"
    ]


def under_contract(graph: Graph, figure: Callable[[Any], float], **options: Any) -> Any:
    data = samples_for(graph, 6)
    contract = {"max_drop": 0.0, "validation_fn": figure, "max_minutes": 1}
    usual = {"calibrate_method": "minmax", "num_threads": 1, "progress": False}
    return qg.quantize_and_compile(graph, data, **usual, **contract, **options)


def test_the_trials_of_accuracy_control_end_recovery_at_their_deadline(clock: Clock) -> None:
    calls = clock.passes(sample_runs, "LayerData", lambda call: 61.0)
    built = under_contract(GRAPH, lambda model: 1.0)
    assert calls == [0.0, 61.0]
    assert ": 4 of 6 layers" in cuts(built)[0]


def test_accuracy_control_returns_the_model_that_it_tried(clock: Clock) -> None:
    tried: list[Graph] = []

    def figure(model: Any) -> float:
        tried.append(model.graph)
        if len(tried) == 4:
            clock.now = 61.0
        return float(len(tried) in (1, 4))

    built = under_contract(network(), figure, int16_activations="auto")
    assert len(tried) == 4
    assert (str(built.graph), weights(built.graph)) == (str(tried[3]), weights(tried[3]))
    (note,) = cuts(built)
    assert note.startswith("max_minutes ended accuracy control early")
