"""The verdict on providers says what is met, and by which figures."""

from __future__ import annotations

from benchmarks.latency.latency import Case, Measurement
from benchmarks.providers.results import CaseResult, session_table, time_table, verdict


def result(name: str, precision: str, cpu_ms: float, ours_ms: float) -> CaseResult:
    def measured(runtime: str, ms: float) -> Measurement:
        return Measurement(Case(name, 1, 1, precision), runtime, round_ms=[ms, ms])

    times = {"cpu": cpu_ms, "quantglow": ours_ms, "compile": ours_ms}
    said = {"seconds": 1.0, "first": 1.0, "before": 10, "resident": 30, "peak": 30}
    claim = {"claim": "quantglow takes 3 of 4 nodes in 1 part(s)", "python": 0.0}
    return CaseResult(
        name,
        precision,
        1,
        {runtime: measured(runtime, ms) for runtime, ms in times.items()},
        {runtime: {**said, **claim} for runtime in times},
        {"seconds": 2.0, "first": 3.0},
    )


def test_goals_are_met_or_missed_by_geometric_means() -> None:
    results = [result("a", "QDQ", 4, 1), result("b", "QDQ", 1, 1), result("c", "float", 1, 1.1)]
    lines = verdict(results, overhead=1.0)
    assert lines[0].startswith("met: 2.00 times the CPU provider, QDQ")
    assert lines[1].startswith("MISSED: 0.91 times the CPU provider, float")
    assert "OpenVINO" in lines[2] and "not measured" in lines[2]
    assert "MISSED: 1.10" in lines[3] and "c float, 1 thread(s)" in lines[3]


def test_a_runtime_that_failed_leaves_its_cells_empty() -> None:
    failed = result("a", "QDQ", 4, 1)
    failed.measured["quantglow"].error = "no such operator"
    del failed.ready["quantglow"]
    assert "| a | QDQ | 1 | failed |  |  |  |" in time_table([failed])
    assert "| a | QDQ | 1 | 2000.0 |  | 1000.0 |  |" in session_table([failed])
    assert len(verdict([failed, result("b", "QDQ", 2, 1)], overhead=1.0)) == 8
