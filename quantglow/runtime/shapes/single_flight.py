"""Work that several threads need at once, done by one of them while the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quantglow.processes.forking import renewed_after_fork

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(eq=False)
class SingleFlight(Generic[Key, Value]):
    """Values that are being made, by key.  Thread-safe."""

    _pending: dict[Key, Future[Value]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        renewed_after_fork(self)

    def forget_threads(self) -> None:
        """Forget, in a forked child, the values that threads of the parent were making."""
        self._lock, self._pending = threading.Lock(), {}

    def result(
        self, find: Callable[[], tuple[Key, Value | None]], make: Callable[[Key], Value]
    ) -> Value:
        """The value that ``find`` gives with its key, or else the one of ``make``.

        ``make`` leaves its value where ``find`` sees it.  Threads that ask for the same key get its
        error, too.  Where Ctrl-C ends the thread that others wait for, one of these makes the
        value.
        """
        while True:
            mine: Future[Value] | None = None
            pending: Future[Value] | None = None
            try:
                with self._lock:
                    key, found = find()
                    if found is not None:
                        return found
                    pending = self._pending.get(key)
                    if pending is None:
                        pending = mine = Future()
                        self._pending[key] = mine
                if mine is not None:
                    made = make(key)
                    self._remove(key, mine)
                    mine.set_result(made)
                return pending.result()
            except BaseException as error:
                if mine is not None:
                    self._remove(key, mine)
                    if not mine.done():
                        mine.set_exception(error)
                if mine is not None or not was_interrupted(pending, error):
                    raise

    def _remove(self, key: Key, mine: Future[Value]) -> None:
        """Let no more threads wait for a value."""
        with self._lock:
            if self._pending.get(key) is mine:
                del self._pending[key]


def was_interrupted(pending: Future[Value] | None, error: BaseException) -> bool:
    """Whether an error is the Ctrl-C of the thread that one waited for."""
    if isinstance(error, Exception) or pending is None or not pending.done():
        return False
    return pending.exception() is error
