"""Ratios of saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.latency import ratios
from benchmarks.latency.ratios import Ratio, markdown_row, measure
from benchmarks.support.quantglow_runtime import saved_model_file


class Model:
    """Notes its name at every run."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def run(self, outputs: None, feeds: dict[str, Any]) -> None:
        self.log.append(self.name)


def test_a_ratio_is_the_median_of_neighbouring_turns() -> None:
    ratio = Ratio([(1.1, 1.0), (2.1, 2.0), (6.0, 3.0)])
    assert ratio.percent()[0] == pytest.approx(10)
    assert ratio.milliseconds == 2.1


def test_both_take_turns_and_who_begins_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(ratios, "TURN_SECONDS", 0.0)
    measurement = measure(Model("own", log), Model("base", log), {}, 0.0)  # type: ignore[arg-type]
    turns = [name for before, name in zip(["", *log], log, strict=False) if name != before]
    assert len(measurement.rounds) == ratios.FEWEST_RUNS
    assert turns == ["base", "own", "base", "own", "base"]
    assert log.count("own") == ratios.FEWEST_RUNS * (1 + ratios.FEWEST_RUNS)


def test_a_row_shows_the_quartiles_and_how_many_rounds() -> None:
    row = markdown_row("net", "quantglow int16", Ratio([(1.05, 1.0)] * 5))
    assert row == "| net | quantglow int16 | 1.050 | +5.0 % | +5.0 to +5.0 % | 5 |"


def test_models_are_named_by_network_and_quantizer() -> None:
    path = saved_model_file(Path("models"), "mnist", "quantglow int16")
    assert path.name == "mnist.quantglow-int16.qgm"
