"""Operating systems: what Linux, macOS and Windows have and others lack, in one place.

Tests take the paths of the other systems on Linux; nothing was run on macOS or Windows.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Hook = Callable[[], object]

CACHES = {"darwin": ("Library", "Caches"), "win32": ("AppData", "Local")}
"""Folder of caches in the home of a user, by system; ``.cache`` on others."""


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


def busy_processors() -> float | None:
    """Processors in use, as the mean of the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
