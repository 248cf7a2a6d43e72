"""A progress bar on stderr around an iterable."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def is_shown(progress: bool | str) -> bool:
    """Whether a bar is shown on stderr: True, or "auto" if stderr is a terminal."""
    return progress is True or (progress == "auto" and sys.stderr.isatty())


def shown(
    items: Iterable[Item], label: str, progress: bool | str = "auto", total: float | None = None
) -> Iterator[Item]:
    """The items, with a bar if ``progress`` is True, or "auto" and stderr is a terminal.

    ``total`` is the number of items; None stands for their ``len``, if they have one.
    """
    if not is_shown(progress):
        yield from items
        return
    # Imported here because rich costs memory and time, and most processes never show a bar.
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, force_terminal=True if progress is True else None)
    yield from track(items, label, total=total, console=console, transient=True)
