"""``effort``: what each leaves out, or does beyond the default."""

from __future__ import annotations

from typing import Any

import pytest

from quantglow.ir.graph.graph import Graph
from quantglow.profiling import profile
from quantglow.quantization import quantizer
from quantglow.quantization.equalize.sample_statistics import FloatRuns
from quantglow.quantization.options import (
    EFFORTS,
    EQUALIZATIONS,
    FAST_EQUALIZATIONS,
    FAST_RECOVERIES,
    QuantizationConfig,
)
from quantglow.quantization.quantizer import FAST_SAMPLES, quantize
from quantglow.quantization.search.levers import MORE_STRETCHES, Stretches, steps, trial_levers
from quantglow.quantization.search.trials import Candidate, Trials, split
from quantglow.support.errors import OptionError
from tests.unit.quantization.quantization_networks import samples_for, small_cnn

RECOVERY_ALONE: dict[str, Any] = {"calibrate_method": "minmax", "equalization": ()}
"""Options with which efforts differ in recovery only."""


def trials_of(**options: Any) -> Trials:
    graph = small_cnn()
    data = samples_for(graph, 12)
    start = Candidate(graph, profile(graph, data, progress=False))
    return Trials(start, QuantizationConfig(**options), *split(data, 0), FloatRuns(graph))


def int8_of(graph: Graph, count: int, **options: Any) -> Graph:
    data = samples_for(graph, count)
    config = QuantizationConfig(**options)
    return quantize(graph, profile(graph, data, progress=False), config, data=data)


def test_another_effort_is_refused() -> None:
    with pytest.raises(OptionError, match="effort"):
        QuantizationConfig(effort="quick")


def test_fast_means_techniques_without_trials() -> None:
    config = QuantizationConfig(effort="fast")
    assert (config.equalization, config.recovery) == (FAST_EQUALIZATIONS, FAST_RECOVERIES)


def test_techniques_that_are_named_hold_in_fast_too() -> None:
    config = QuantizationConfig(effort="fast", equalization="mix-channels", recovery=())
    assert (config.equalization, config.recovery) == (("mix-channels",), ())


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ({"effort": "fast"}, False),
        ({"effort": "fast", "equalization": EQUALIZATIONS}, True),
        ({"effort": "default"}, True),
        ({"effort": "best"}, True),
        (RECOVERY_ALONE, False),
    ],
)
def test_nothing_runs_where_there_is_nothing_to_try(options: dict[str, Any], tried: bool) -> None:
    assert trials_of(**options).is_search is tried


@pytest.mark.parametrize("effort", EFFORTS)
def test_fast_recovers_on_few_samples(effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    kept = quantizer.round_layers

    def counted(graph: Graph, int8: Graph, samples: list[Any], *remaining: Any) -> Any:
        counts.append(len(samples))
        return kept(graph, int8, samples, *remaining)

    monkeypatch.setattr(quantizer, "round_layers", counted)
    int8_of(small_cnn(), 2 * FAST_SAMPLES, effort=effort, **RECOVERY_ALONE)
    assert counts == [FAST_SAMPLES if effort == "fast" else 2 * FAST_SAMPLES]


def prepared_noise(effort: str, seed: int) -> float:
    """The noise of what is prepared, on the samples that decide."""
    trials = trials_of(effort=effort, seed=seed)
    for _ in steps(trials):
        pass
    return trials.noise


@pytest.mark.parametrize("seed", range(3))
def test_best_is_no_noisier_than_the_default(seed: int) -> None:
    assert prepared_noise("best", seed) <= prepared_noise("default", seed)


def test_best_decides_on_smaller_parts_where_the_default_ends() -> None:
    usual, longer = (trial_levers(effort) for effort in ("default", "best"))
    assert [type(lever) for lever in longer] == [*(type(lever) for lever in usual), Stretches]
    assert isinstance(longer[-1], Stretches) and longer[-1].count == MORE_STRETCHES
