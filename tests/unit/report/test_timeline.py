"""Timelines from files, which anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantglow.report.page import MAX_EVENTS, timeline, trace_in
from quantglow.support.errors import FileFormatError

EVENT = {"ph": "X", "tid": 7, "name": "conv", "cat": "kernel", "ts": 2.0, "dur": 3.0}
NAMED = {"ph": "M", "tid": 7, "name": "thread_name", "args": {"name": "worker"}}


def test_events_have_the_position_of_their_thread() -> None:
    actual = timeline({"traceEvents": [NAMED, EVENT, {**EVENT, "tid": 3}]})
    assert actual["threads"] == ["worker", "thread 3"]
    assert actual["events"] == [(0, "conv", "kernel", 2.0, 3.0), (1, "conv", "kernel", 2.0, 3.0)]


def test_long_traces_are_cut() -> None:
    assert len(timeline({"traceEvents": [EVENT] * (MAX_EVENTS + 1)})["events"]) == MAX_EVENTS


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "[]",
        "1",
        "{}",
        '{"traceEvents": [1]}',
        '{"traceEvents": [{"ph": "X"}]}',
        json.dumps({"traceEvents": [{**EVENT, "ts": "a"}]}),
        json.dumps({"traceEvents": [{**EVENT, "dur": float("nan")}]}),
        json.dumps({"traceEvents": [{**EVENT, "tid": []}]}),
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_trace_is_refused(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(wrong)
    with pytest.raises(FileFormatError, match=r"trace\.json"):
        trace_in(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"none\.json"):
        trace_in(tmp_path / "none.json")


def test_a_trace_that_is_written_can_be_read(tmp_path: Path) -> None:
    path, trace = tmp_path / "trace.json", {"traceEvents": [NAMED, EVENT]}
    path.write_text(json.dumps(trace))
    actual: Any = trace_in(path)
    assert actual == trace
