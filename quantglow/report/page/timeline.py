"""A trace in Chrome's format as rows of events, by thread.  The file may be anybody's."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from quantglow.arguments import file_path
from quantglow.errors import FileFormatError

MAX_EVENTS = 20_000
"""Maximum number of events on a page, the first ones."""

Row = tuple[int, str, str, float, float]
"""Position of the thread, name, category, begin and duration in microseconds."""


def trace_in(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The trace of a file, as ``compiled.trace`` writes it.  Raises ``FileFormatError``."""
    file = file_path("trace", path)
    try:
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        timeline(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{file!r} is no timeline in Chrome's format: {error!r}. "
            "Remedy: write one with compiled.trace(feeds, path)."
        ) from error
    return dict(found)


def timeline(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Names of threads, and their events."""
    numbers: dict[Any, int] = {}
    events = [
        (numbers.setdefault(thread, len(numbers)), *rest)
        for thread, *rest in rows(trace)[:MAX_EVENTS]
    ]
    named = dict(named_threads(trace))
    return {"threads": [named.get(n, f"thread {n}") for n in numbers], "events": events}


def rows(trace: Mapping[str, Any]) -> list[Row]:
    """Events that have a duration.  Raises for what is no trace."""
    return [
        (event["tid"], str(event["name"]), str(event.get("cat", "")), *times(event))
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]


def times(event: Mapping[str, Any]) -> tuple[float, float]:
    """Begin and duration.  Raises ``ValueError`` for infinite ones."""
    begin, duration = float(event["ts"]), float(event["dur"])
    if not (math.isfinite(begin) and math.isfinite(duration)):
        raise ValueError("an event has no finite time")
    return begin, duration


def named_threads(trace: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Each thread that has a name, and it."""
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            yield event["tid"], str(event["args"]["name"])
