"""Progress without a terminal: lines with the time left."""

from __future__ import annotations

import sys

import pytest

from quantglow.support import progress
from quantglow.support.progress import line, show


def test_lines_tell_the_first_item_and_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(show(iter("abc"), "Profiling", True, 3)) == ["a", "b", "c"]
    assert capfd.readouterr().err == "Profiling: 1 of 3\nProfiling: done, 3 in 0 s\n"


def test_lines_come_from_time_to_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 0.0, 4.0, 12.0, 16.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert len(list(show([1, 2, 3, 4], "Profiling", True))) == 4
    assert capfd.readouterr().err.splitlines() == [
        "Profiling: 1 of 4",
        "Profiling: 3 of 4, about 12 s left",
        "Profiling: done, 4 in 20 s",
    ]


def test_nothing_is_shown_in_logs_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(show([1, 2], "Profiling")) == [1, 2]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("asked", [True, False, "auto"])
def test_nothing_is_shown_without_stderr(
    asked: bool | str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert list(show([1, 2], "Profiling", asked)) == [1, 2]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("count", "total", "text"),
    [
        (1, 4.0, "P: 1 of 4"),
        (3, 4.0, "P: 3 of 4, about 10 s left"),
        (9, 4.0, "P: 9 of 4, about 0 s left"),
        (3, None, "P: 3"),
    ],
)
def test_the_time_left_is_that_of_the_items_done(count: int, total: float, text: str) -> None:
    assert line("P", count, total, 10.0) == text
