"""Threads that compile beside the calls of a program, and end with its process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from weakref import WeakSet

from quantglow.processes.system import at_fork

PATIENCE_SECONDS = 10.0
"""Longest time for which the end of the process waits for one kernel that is being compiled."""

_ending = threading.Event()
_threads: WeakSet[threading.Thread] = WeakSet()


def started(name: str, work: Callable[[], object]) -> threading.Thread | None:
    """A thread that does ``work``; None where none can be started, as at the end of the process."""
    if _ending.is_set():
        return None
    thread = threading.Thread(target=work, name=name, daemon=True)
    _threads.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _threads.discard(thread)
        return None
    return thread


def check_not_ending() -> None:
    """Raise ``CancelledError`` in a thread of ``started`` when the process ends; it is called
    between kernels."""
    if _ending.is_set() and threading.current_thread() in _threads:
        raise CancelledError


def _end() -> None:
    """Wait for what is being compiled: LLVM must not run while its memory is given back."""
    _ending.set()
    for thread in list(_threads):
        thread.join(PATIENCE_SECONDS)


atexit.register(_end)
at_fork(child=_threads.clear)
