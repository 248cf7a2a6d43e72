"""The table of compile times."""

from __future__ import annotations

from benchmarks.latency import compile
from benchmarks.latency.compile import STAGES, WAYS, Timing


def timing(way: str, **seconds: float) -> Timing:
    return Timing("net", way, {"all": 1.0, "cpu": 2.0, **seconds}, 3_000_000)


def test_a_row_has_the_median_of_each_column_over_the_rounds() -> None:
    rounds = [timing("cold", lower=spent, plan=0.5) for spent in (9.0, 1.0, 2.0)]
    cells = dict(zip(STAGES, compile.row(rounds).strip("| ").split(" | ")[2:], strict=False))
    assert cells["lower and plan"] == "2.50"
    assert cells["profile"] == "0.00"


def test_ways_have_rows_of_their_own() -> None:
    actual = compile.rows([timing(way) for _ in range(2) for way in WAYS])
    assert [row.split(" | ")[1] for row in actual] == list(WAYS)


def test_every_stage_that_the_report_times_has_a_column() -> None:
    stages = {"import", "profile", "prepare", "quantize", "lower", "plan", "generate code"}
    assert stages <= {stage for column in STAGES.values() for stage in column}
