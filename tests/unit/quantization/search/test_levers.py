"""Levers: each alone, and what it proposes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Range, profile
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.search import levers
from quantglow.quantization.search.levers import (
    STRETCHES,
    AlignInputs,
    FuseFunctions,
    LeaveUnscaled,
    Lever,
    NarrowRanges,
    RescaleChannels,
    Stretches,
    exact_levers,
    plain_in,
    trial_levers,
)
from quantglow.quantization.search.trials import Candidate, Trials, split
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import Deadline
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
)

NARROW = {"first": Range(0.0, 1.0), "last": Range(-1.0, 1.0)}


def uneven() -> Graph:
    """Conv -> Relu -> Conv, with channels between them that differ by a factor of a thousand."""
    x = image(8, 6)
    first = conv("first", x, 8, low=0.0)
    factors = np.logspace(-2, 1, 8)
    assert first.b is not None
    w, b = (constant(c.name, c.value * factors) for c in (first.w, first.b))
    return graph_of(conv("last", replace(first, w=w, b=b), 8), inputs=(x,))


def trials_of(graph: Graph, data: list[dict[str, Array]], **options: Any) -> Trials:
    start = Candidate(graph, profile(graph, data, progress=False))
    return Trials(start, QuantizationConfig(**options), *split(data, 0), FloatRuns(graph))


def uneven_trials(**options: Any) -> Trials:
    return trials_of(uneven(), samples_for(uneven(), 12), **options)


def bytes_for(graph: Graph, count: int) -> list[dict[str, Array]]:
    """Samples made of bytes, as images are."""
    rng, (x,) = np.random.default_rng(0), graph.inputs
    pixels = [rng.integers(0, 256, x.type.shape) for _ in range(count)]
    return [{"x": ((p - 128) / np.float32(64)).astype(np.float32)} for p in pixels]


def test_levers_that_are_exact_come_before_those_that_are_tried() -> None:
    assert [type(lever) for lever in (*exact_levers(), *trial_levers())] == [
        FuseFunctions,
        AlignInputs,
        LeaveUnscaled,
        NarrowRanges,
        RescaleChannels,
        Stretches,
    ]


@pytest.mark.parametrize("lever", [FuseFunctions(), AlignInputs(), RescaleChannels(NarrowRanges())])
def test_a_technique_that_is_not_chosen_proposes_nothing(lever: Lever) -> None:
    graph = uneven()
    trials = trials_of(graph, bytes_for(graph, 12), equalization=(), calibrate_method="minmax")
    assert list(lever.proposals(trials)) == []


def test_an_input_made_of_bytes_gets_their_steps() -> None:
    graph = uneven()
    (aligned,) = AlignInputs().proposals(trials_of(graph, bytes_for(graph, 12)))
    assert [r.high - r.low for r in aligned.ranges.values()] == [pytest.approx(255 / 64)]


def test_an_input_of_any_reals_is_left_alone() -> None:
    assert list(AlignInputs().proposals(uneven_trials())) == []


def test_the_graph_as_it_is_is_proposed_first() -> None:
    trials = uneven_trials()
    assert list(LeaveUnscaled().proposals(trials)) == [trials.start]


def test_ranges_of_aligned_inputs_are_not_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, grid = {**NARROW, "x": Range(-9.0, 9.0)}, {"x": Range(-2.0, 1.984375)}
    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: chosen)
    trials = uneven_trials()
    trials.begin(replace(trials.start, ranges=grid))
    (proposal,) = NarrowRanges().proposals(trials)
    assert proposal.ranges == NARROW | grid


@pytest.mark.parametrize("is_taken", [False, True])
def test_ranges_that_are_refused_are_remembered(
    monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: NARROW)
    actual, lever = uneven_trials(), NarrowRanges()
    for proposal in lever.proposals(actual):
        if is_taken:
            actual.best = proposal
    assert lever.refused == (None if is_taken else (actual.start, NARROW))


def test_the_noise_of_the_plain_graph_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: NARROW)
    actual, lever = uneven_trials(), NarrowRanges()
    actual.last = 3.0
    for _ in lever.proposals(actual):
        actual.last = 2.0
    assert lever.plain == 3.0


@pytest.mark.parametrize(("noise", "proposals"), [(1.5, 2), (2.5, 1)])
def test_ranges_are_chosen_for_equalized_graphs_that_are_better_with_min_max_ranges(
    monkeypatch: pytest.MonkeyPatch, noise: float, proposals: int
) -> None:
    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: NARROW)
    trials = uneven_trials(equalization=("equalize-channels",))
    recorded = []
    for candidate in RescaleChannels(NarrowRanges(plain=2.0)).proposals(trials):
        recorded.append(candidate)
        trials.last = noise
    assert len(recorded) == proposals


@pytest.mark.parametrize(
    ("effort", "takes_mixture", "expected"),
    [
        ("default", True, ["factors", "mixture and ranges"]),
        ("default", False, ["factors", "mixture and ranges", "factors and ranges"]),
        ("best", True, ["factors", "mixture and ranges", "factors and ranges"]),
    ],
)
def test_ranges_are_chosen_once_for_factors_that_a_mixture_follows(
    monkeypatch: pytest.MonkeyPatch, effort: str, takes_mixture: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: NARROW)
    x = image(8, 6)
    middle = conv("middle", conv("first", x, 8, low=0.0), 6)
    graph = graph_of(conv("last", middle, 8), inputs=(x,))
    trials = trials_of(graph, samples_for(graph, 12), effort=effort)
    recorded = []
    for candidate in RescaleChannels(NarrowRanges(plain=2.0)).proposals(trials):
        is_mixture = any(factor.ndim == 2 for factor in candidate.factors.values())
        name = "mixture" if is_mixture else "factors"
        recorded.append(f"{name} and ranges" if candidate.ranges else name)
        trials.last = 1.0
        if not recorded[1:] or (takes_mixture and is_mixture):
            trials.best = candidate
    assert recorded == expected


def test_rescaled_channels_keep_the_function_of_the_network() -> None:
    trials = uneven_trials()
    proposal = next(RescaleChannels(NarrowRanges()).proposals(trials))
    one, other = (interpret(g, trials.held[0])[0] for g in (trials.start.graph, proposal.graph))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


def test_channels_of_small_range_are_enlarged() -> None:
    trials = uneven_trials()
    (factors,) = next(RescaleChannels(NarrowRanges()).proposals(trials)).factors.values()
    assert factors[-1] > 5 * factors[0]


def test_nothing_is_rescaled_after_the_deadline() -> None:
    trials = uneven_trials()
    trials.deadline = Deadline(time.monotonic() - 1)
    assert list(RescaleChannels(NarrowRanges()).proposals(trials)) == []


def test_each_stretch_is_tried_as_the_model_has_it() -> None:
    trials = uneven_trials()
    trials.best = replace(trials.start, ranges=NARROW)
    kept = [proposal.ranges.keys() for proposal in Stretches(NarrowRanges()).proposals(trials)]
    groups = 3  # the input, between the layers, the output
    assert len(kept) == math.ceil(groups / math.ceil(groups / STRETCHES))
    assert all(any(name not in ranges for ranges in kept) for name in NARROW)


def test_ranges_refused_on_the_whole_are_tried_in_each_stretch() -> None:
    trials = uneven_trials()
    ranges = NarrowRanges(refused=(trials.start, NARROW))
    tried = [proposal.ranges.keys() for proposal in Stretches(ranges).proposals(trials)]
    assert {"first"} in tried
    assert {"last"} in tried


def test_ranges_refused_for_another_candidate_are_forgotten() -> None:
    trials = uneven_trials()
    ranges = NarrowRanges(refused=(replace(trials.start, ranges=NARROW), NARROW))
    assert all(not proposal.ranges for proposal in Stretches(ranges).proposals(trials))


def test_a_plain_stretch_has_neither_factors_nor_ranges() -> None:
    trials = uneven_trials()
    trials.best = next(RescaleChannels(NarrowRanges()).proposals(trials))
    trials.best = replace(trials.best, ranges=NARROW)
    plain = plain_in({"first"}, trials)
    assert "first" not in plain.factors
    assert plain.ranges.keys() == {"last"}


def test_a_plain_stretch_has_the_weights_of_the_model() -> None:
    trials = uneven_trials()
    trials.best = next(RescaleChannels(NarrowRanges()).proposals(trials))
    plain = plain_in({"first"}, trials)
    assert plain.graph.by_name("first").w.value is trials.start.graph.by_name("first").w.value
