"""Trials: which samples decide, and when a candidate is taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantglow.interpreter import interpret
from quantglow.profiling import Range, profile
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.search import trials
from quantglow.quantization.search.trials import (
    HELD_BACK,
    MIN_SAMPLES,
    WORTH,
    Candidate,
    Trials,
    split,
)
from tests.unit.quantization.quantization_networks import (
    conv,
    graph_of,
    image,
    samples_for,
    small_cnn,
)

NARROW = {"y": Range(-1.0, 1.0)}


def trials_of(count: int = 12, **options: Any) -> Trials:
    """Trials of a network of one layer on ``count`` samples."""
    x = image(4, 4)
    graph = graph_of(conv("y", x, 4), inputs=(x,))
    data = samples_for(graph, count)
    start = Candidate(graph, profile(graph, data, progress=False))
    return Trials(start, QuantizationConfig(**options), *split(data, 0), FloatRuns(graph))


def judged(actual: Trials, noises: Iterable[float], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each of several candidates of these noises is taken."""
    inputs = iter(noises)
    monkeypatch.setattr(trials, "relative_noise", lambda *arguments: next(inputs))
    collected = []
    for number, _ in enumerate(noises):
        candidate = replace(actual.start, ranges={"y": Range(-1.0, 1.0 + number)})
        actual.judge(candidate)
        collected.append(actual.best is candidate)
    return collected


@pytest.mark.parametrize(("count", "held"), [(2, 1), (3, 1), (12, 4), (24, HELD_BACK), (90, 8)])
def test_a_third_of_the_samples_decides_and_eight_at_most(count: int, held: int) -> None:
    assert len(split(samples_for(small_cnn(), count), 0)[1]) == held


def test_no_sample_is_chosen_on_and_decides() -> None:
    samples = samples_for(small_cnn(), 12)
    fitting, held = split(samples, 0)
    assert sorted(map(id, [*fitting, *held])) == sorted(map(id, samples))


def test_a_single_sample_does_both() -> None:
    samples = samples_for(small_cnn(), 1)
    assert split(samples, 0) == (samples, samples)


def test_the_seed_draws_the_samples_that_decide() -> None:
    samples = samples_for(small_cnn(), 12)
    one, other = (split(samples, seed)[1] for seed in (0, 1))
    assert {id(s) for s in one} != {id(s) for s in other}


def test_the_first_candidate_is_taken_and_later_ones_if_they_are_clearly_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little = 1 - (1 - WORTH) / 2
    noises = (1.0, little, 0.9, 0.9 * little, 0.5, 2.0)
    selected = judged(trials_of(), noises, monkeypatch)
    assert selected == [True, False, True, False, True, False]


def test_a_candidate_of_infinite_noise_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(trials_of(), [np.inf, np.nan, 5.0], monkeypatch) == [False, False, True]


def test_a_candidate_like_the_best_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    actual, inputs = trials_of(), iter([2.0, 1.0])
    monkeypatch.setattr(trials, "relative_noise", lambda *arguments: next(inputs))
    first, again, other = (
        replace(actual.start, ranges=dict(ranges)) for ranges in (NARROW, NARROW, {})
    )
    for candidate in (first, again):
        actual.judge(candidate)
        assert (actual.best, actual.last) == (first, 2.0)
    actual.judge(other)
    assert (actual.best, actual.last) == (other, 1.0)


def test_a_candidate_with_other_factors_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    actual, inputs = trials_of(), iter([2.0, 3.0, 4.0])
    monkeypatch.setattr(trials, "relative_noise", lambda *arguments: next(inputs))
    ones = np.ones(4, np.float32)
    for noise, factors in ((2.0, {"y": ones}), (3.0, {"y": ones.copy()}), (4.0, {})):
        actual.judge(replace(actual.start, factors=factors))
        assert actual.last == noise


def test_a_candidate_that_begins_is_the_best_without_a_trial() -> None:
    trials = trials_of()
    candidate = replace(trials.start, ranges=NARROW)
    trials.begin(candidate)
    assert trials.start is trials.best is candidate


@pytest.mark.parametrize(
    ("count", "method", "tried"),
    [(MIN_SAMPLES, "auto", True), (MIN_SAMPLES - 1, "auto", False), (12, "minmax", False)],
)
def test_ranges_are_tried_on_enough_samples(count: int, method: str, tried: bool) -> None:
    assert trials_of(count, calibrate_method=method).chooses_ranges is tried


def test_samples_of_the_same_shape_are_all_alike() -> None:
    trials = trials_of()
    before = len(trials.samples)
    trials.leave_out_unlike()
    assert len(trials.samples) == before


def test_outputs_are_compared_with_those_of_the_float_graph() -> None:
    trials = trials_of()
    trials.run_float()
    expected = [interpret(trials.start.graph, feeds)[0] for feeds in trials.held]
    np.testing.assert_array_equal([expected for (expected,) in trials.exact_ends], expected)
