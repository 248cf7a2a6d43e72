"""The work under way in this process, and lines in logs that say how far it is.

``shown`` and ``step`` enter what they do; ``heartbeat`` says it from time to time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BEAT_SECONDS = 20.0
"""Seconds between two lines of a command without a terminal."""

_under_way: dict[object, str] = {}
"""Steps that have begun and not ended, the innermost last; empty texts are shown by themselves."""


@contextmanager
def step(text: str) -> Iterator[None]:
    """Inside, ``heartbeat`` says ``text``; an empty one keeps it silent."""
    key = object()
    _under_way[key] = text
    try:
        yield
    finally:
        _under_way.pop(key, None)


@contextmanager
def heartbeat(name: str) -> Iterator[None]:
    """Inside, a line on stderr every ``BEAT_SECONDS`` names the step under way, where there is no
    terminal."""
    if sys.stderr is None or sys.stderr.isatty():
        yield
        return
    over, begun = threading.Event(), time.monotonic()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            text = next(reversed(list(_under_way.values())), "working")
            if text and sys.stderr is not None:
                print(f"{name}: {text}, {time.monotonic() - begun:.0f} s", file=sys.stderr)

    thread = threading.Thread(target=beat, name="quantglow-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
