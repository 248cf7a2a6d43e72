"""Threads that compile beside the calls of a program, and end with its process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

from quantglow.alive import Alive
from quantglow.processes.system import at_fork

PATIENCE_SECONDS = 10.0
"""Longest time for which the end of the process waits for one kernel that is being compiled."""

_ending = threading.Event()
_threads = Alive[threading.Thread]()


def started(name: str, work: Callable[[], object]) -> threading.Thread | None:
    """A thread that does ``work``; None where none can be started, as at the end of the process."""
    if _ending.is_set():
        return None
    thread = threading.Thread(target=work, name=name, daemon=True)
    _threads.add(thread)
    try:
        thread.start()
    except RuntimeError:
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
    for thread in _threads:
        if thread.is_alive():
            thread.join(PATIENCE_SECONDS)


atexit.register(_end)
at_fork(child=_threads.clear)
