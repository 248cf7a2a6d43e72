"""Progress of work: bars in terminals and notebooks, lines in logs.

``show`` and ``step`` enter the work under way; ``heartbeat`` says it from time to time.  The bar
of a notebook is HTML and needs no widgets.
"""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

BEAT_SECONDS = 20.0
"""Seconds between two lines of a command without a terminal."""

_under_way: dict[object, str] = {}
"""Steps that have begun and not ended, the innermost last; empty texts are shown by themselves."""

Item = TypeVar("Item")

UPDATE_SECONDS = 0.1
"""Minimum seconds between two updates: each is a message to the browser."""

LINE_SECONDS = 10.0
"""Seconds between two lines of a log."""


def is_shown(progress: bool | str) -> bool:
    """Whether progress is shown: True, or "auto" if there is a terminal or a notebook;
    without stderr it is not."""
    if in_notebook():
        return progress in (True, "auto")
    if sys.stderr is None:
        return False
    return progress is True or (progress == "auto" and sys.stderr.isatty())


def show(
    items: Iterable[Item], label: str, progress: bool | str = "auto", total: float | None = None
) -> Iterator[Item]:
    """The items, with a bar if ``progress`` is True, or "auto" in a terminal or a notebook.

    In logs there are lines instead of a bar.  ``total`` is the number of items; None stands for
    their ``len``, if they have one.
    """
    if not is_shown(progress):
        with step(label):
            yield from items
        return
    with step(""):
        yield from _with_bar(items, label, total)


def _with_bar(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
    """The items, with a bar, or lines in a log."""
    if in_notebook():
        yield from _in_html(items, label, _count_items(items) if total is None else total)
        return
    if not sys.stderr.isatty():
        yield from _with_lines(items, label, _count_items(items) if total is None else total)
        return
    # Imported here because rich costs memory and time, and most processes never show a bar.
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, label, total=total, console=console, transient=True)


def _count_items(items: Iterable[Any]) -> float | None:
    """The number of items, where they know it."""
    return float(len(items)) if isinstance(items, Sized) else None


def _with_lines(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
    """The items, with a line on stderr at the first one, then from time to time, and at the end."""
    started = time.monotonic()
    printed, count = -LINE_SECONDS, 0
    for count, item in enumerate(items, 1):
        spent = time.monotonic() - started
        if spent - printed >= LINE_SECONDS:
            print(line(label, count, total, spent), file=sys.stderr, flush=True)
            printed = spent
        yield item
    spent = time.monotonic() - started
    print(f"{label}: done, {count} in {spent:.0f} s", file=sys.stderr, flush=True)


def line(label: str, count: int, total: float | None, spent: float) -> str:
    """The state before item ``count``; the time left, once one is done."""
    of_all = "" if total is None else f" of {total:.0f}"
    if total is None or count == 1:
        return f"{label}: {count}{of_all}"
    left = spent / (count - 1) * max(total - count + 1, 0)
    return f"{label}: {count}{of_all}, about {left:.0f} s left"


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


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _in_html(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
    """The items, with a bar below the cell, which ends as a line with the time spent."""
    shows: Any = import_module("IPython.display")  # IPython runs this process
    handle = shows.display(shows.HTML(bar(label, 1, total, 0.0)), display_id=True)
    started = updated = time.monotonic()
    count = 0
    for count, item in enumerate(items, 1):
        now = time.monotonic()
        if now - updated >= UPDATE_SECONDS:
            handle.update(shows.HTML(bar(label, count, total, now - started)))
            updated = now
        yield item
    spent = time.monotonic() - started
    handle.update(shows.HTML(f"<small>{html.escape(label)}: {count} in {spent:.0f} s</small>"))


def bar(label: str, count: int, total: float | None, spent: float) -> str:
    """The state before item ``count``; without a total, a bar that only moves."""
    attributes = "" if total is None else f" value='{count - 1}' max='{total:.0f}'"
    text = html.escape(line(label, count, total, spent))
    return f"<progress style='width:240px'{attributes}></progress> <small>{text}</small>"
