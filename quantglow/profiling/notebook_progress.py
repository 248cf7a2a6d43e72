"""A progress bar of HTML in a notebook; needs no widgets."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

from quantglow.profiling.progress_text import line

Item = TypeVar("Item")

UPDATE_SECONDS = 0.1
"""Minimum seconds between two updates: each is a message to the browser."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def in_html(items: Iterable[Item], label: str, total: float | None) -> Iterator[Item]:
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
    known = "" if total is None else f" value='{count - 1}' max='{total:.0f}'"
    text = html.escape(line(label, count, total, spent))
    return f"<progress style='width:240px'{known}></progress> <small>{text}</small>"
