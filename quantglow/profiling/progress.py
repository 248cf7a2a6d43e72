"""A progress bar around an iterable: in a terminal, in a notebook, or as lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from quantglow.profiling.notebook_progress import in_html, in_notebook
from quantglow.profiling.progress_text import line
from quantglow.profiling.under_way import step

Item = TypeVar("Item")

LINE_SECONDS = 10.0
"""Seconds between two lines."""


def is_shown(progress: bool | str) -> bool:
    """Whether progress is shown: True, or "auto" if there is a terminal or a notebook;
    without stderr it is not."""
    if in_notebook():
        return progress in (True, "auto")
    if sys.stderr is None:
        return False
    return progress is True or (progress == "auto" and sys.stderr.isatty())


def shown(
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
        yield from with_bar(items, label, total)


def with_bar(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
    """The items, with a bar, or lines in a log."""
    if in_notebook():
        yield from in_html(items, label, len_of(items) if total is None else total)
        return
    if not sys.stderr.isatty():
        yield from with_lines(items, label, len_of(items) if total is None else total)
        return
    # Imported here because rich costs memory and time, and most processes never show a bar.
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, label, total=total, console=console, transient=True)


def len_of(items: Iterable[Any]) -> float | None:
    """The number of items, where they know it."""
    return float(len(items)) if isinstance(items, Sized) else None


def with_lines(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
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
