"""Turns with a trace and without."""

from __future__ import annotations

from typing import Any

from benchmarks.latency import trace
from benchmarks.latency.ratios import FEWEST_RUNS, Ratio
from quantglow.support.timeline import active


class Model:
    """Notes at every run whether it is traced."""

    def __init__(self) -> None:
        self.log: list[bool] = []

    def run(self, outputs: None, feeds: dict[str, Any]) -> None:
        self.log.append(active() is not None)


def test_one_of_three_turns_is_traced() -> None:
    model = Model()
    traced, again = trace.measure(model, {}, 0.0)  # type: ignore[arg-type]
    assert sum(model.log) * 3 == len(model.log) - (FEWEST_RUNS + 1)
    assert len(traced.rounds) == len(again.rounds) == FEWEST_RUNS


def test_each_turn_begins_once() -> None:
    log: list[str] = []

    def turn(name: str) -> trace.Turn:
        return lambda: float(log.append(name) or ord(name))  # type: ignore[func-returns-value]

    traced, again = trace.rotated([turn("a"), turn("b"), turn("c")], 0.0)
    assert "".join(log) == "abcbcacab"
    assert traced.rounds == [(98.0, 97.0)] * 3 and again.rounds == [(99.0, 97.0)] * 3


def test_a_row_shows_the_spread_of_both() -> None:
    row = trace.markdown_row("net", 1, Ratio([(1.01, 1.0)] * 3), Ratio([(1.0, 1.0)] * 3))
    assert row == "| net | 1 | 1.000 | +1.00 % | +1.00 to +1.00 % | +0.00 to +0.00 % | 3 |"
