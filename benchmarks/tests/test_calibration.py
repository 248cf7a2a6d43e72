"""The table of calibration times."""

from __future__ import annotations

from benchmarks.accuracy.accuracy import Result
from benchmarks.accuracy.calibration import Row, table


def result(quantizer: str, seconds: float | None, error: str | None = None) -> Result:
    return Result("net", quantizer, 20.0, 1.0, None, seconds, 10**6, 3 * 10**6, error)


def test_times_are_medians_over_that_of_the_measure() -> None:
    ours = Row(tuple(result("quantglow", seconds) for seconds in (9.0, 3.0, 4.0)))
    peer = Row(tuple(result("nncf", seconds) for seconds in (2.0, 2.0, 8.0)))
    assert table([ours, peer]) == (
        "| net | quantglow | 4.00 | 2.00 | 20.00 | 2 |\n| net | nncf | 2.00 | 1.00 | 20.00 | 2 |"
    )


def test_a_failed_round_stands_in_the_row() -> None:
    failed = Row((result("nncf", 1.0), result("nncf", None, "out of memory | killed")))
    assert table([failed]) == "| net | nncf | out of memory \\| killed |  |  |  |"
    assert failed.seconds is None
