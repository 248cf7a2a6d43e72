"""Operating systems: what Linux, macOS and Windows have and others lack, in one place.

Tests take the paths of the other systems on Linux; nothing was run on macOS or Windows.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Hook = Callable[[], object]

CACHES = {"darwin": ("Library", "Caches"), "win32": ("AppData", "Local")}
"""Folder of caches in the home of a user, by system; ``.cache`` on others."""


LOOK_SECONDS = 0.2
"""Time in which ``busy_processors`` counts, in seconds: 20 ticks of the usual clock."""


def at_fork(*, before: Hook | None = None, parent: Hook | None = None, child: Hook) -> None:
    """Call hooks around a fork, in both processes; there is none on Windows."""
    if hasattr(os, "register_at_fork"):
        hooks = {"before": before, "after_in_parent": parent, "after_in_child": child}
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})


def processors() -> list[int]:
    """The processors on which this process may run; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def user_caches() -> Path:
    """The folder for caches of this user.  Raises ``RuntimeError`` for a user without a home."""
    return Path.home().joinpath(*CACHES.get(sys.platform, (".cache",)))


def c_function(name: str) -> Any:
    """A function that the C library of this process exports; None where there is none."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # Windows has no handle of the whole process
        return None


def busy_processors(seconds: float = LOOK_SECONDS) -> float | None:
    """Processors in use while this thread sleeps, among those where this process may run.

    Where the system counts no idle time: the mean of the last minute; else None.
    """
    try:
        first = idle_ticks()
        start = time.monotonic()
        time.sleep(seconds)
        ticks = os.sysconf("SC_CLK_TCK") * (time.monotonic() - start)
        idle = [after - before for before, after in zip(first, idle_ticks(), strict=True)]
    except (OSError, ValueError, AttributeError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return sum(max(0.0, 1 - count / ticks) for count in idle)


def idle_ticks() -> list[int]:
    """Clock ticks that each processor of this process was idle, or waited for a disk (Linux)."""
    labels = {f"cpu{number}" for number in processors()}
    lines = map(str.split, Path("/proc/stat").read_text().splitlines())
    return [int(line[4]) + int(line[5]) for line in lines if line and line[0] in labels]
