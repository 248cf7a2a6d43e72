"""Threads: pools, background threads, single flight, locks renewed in a forked child.

A forked child has none of its parent's threads: a lock that one of them held would stay locked, and
work that one of them did would never end.  ``renew_after_fork`` renews such objects, as each
``ForkSafeLock``.

``start`` runs work beside the calls of a program, as compiling; it ends with the process.
``submit`` calls on a pool: Python's pools take no more calls when the main thread has ended,
while other threads of a service may go on for days.

``run_undisturbed`` calls Python's parser in spite of other threads.  ``ast.parse`` of CPython
counts the depth of its recursion in one place for all threads.  If a finalizer lets another thread
parse meanwhile, the first one gets a ``SystemError``
(https://github.com/python/cpython/issues/106905). NumPy reads the heads of arrays in this way.

``SingleFlight`` lets one thread do the work that several need at once; the others wait.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from quantglow.support.processes.system import at_fork

Item = TypeVar("Item")

FEW = 64
"""Number of references that are kept without a look at which are dead."""

PATIENCE_SECONDS = 10.0
"""Longest time for which the end of the process waits for one kernel that is being compiled."""

_ending = threading.Event()

Result = TypeVar("Result")

ATTEMPTS = 100
"""Maximum number of calls of ``run_undisturbed``.  Two disturbed ones in a row are rare; a lock
would not hold back the threads of others."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Alive(Generic[Item]):
    """A set of weak references.  Thread-safe.

    A ``WeakSet`` runs Python code where an object dies.  Python drops an exception there, so that a
    Ctrl-C that comes just then would be lost.
    """

    def __init__(self) -> None:
        self._references: dict[int, ref[Item]] = {}
        self._room = FEW

    def add(self, item: Item) -> None:
        """Know an object."""
        reference = ref(item)
        self._references[id(reference)] = reference
        if len(self._references) > self._room:
            for key, each in list(self._references.items()):
                if each() is None:
                    self._references.pop(key, None)
            self._room = max(FEW, 2 * len(self._references))

    def __iter__(self) -> Iterator[Item]:
        """The objects that are alive, in the order in which they came."""
        for each in list(self._references.values()):
            if (item := each()) is not None:
                yield item

    def clear(self) -> None:
        """Forget all objects."""
        self._references.clear()


class HasThreads(Protocol):
    """An object that threads share."""

    def forget_threads(self) -> None:
        """Renew its locks, in a forked child, and forget what threads of the parent were doing."""


_holders, _last = Alive[HasThreads](), Alive[HasThreads]()


def renew_after_fork(item: HasThreads, *, last: bool = False) -> None:
    """Call ``item.forget_threads()`` in each forked child, as long as the object is in use.

    ``last``: after all others, because it calls functions of users, which may use these.
    """
    (_last if last else _holders).add(item)


def _forget_threads() -> None:
    for items in (_holders, _last):
        for item in items:
            item.forget_threads()


at_fork(child=_forget_threads)


class ForkSafeLock:
    """A lock that is free in a forked child, also where a thread of the parent held it.

    ``with lock:`` holds it.  A thread that forks meanwhile holds it no longer in the child.
    """

    def __init__(self) -> None:
        self.forget_threads()
        renew_after_fork(self)

    def forget_threads(self) -> None:
        """Make a new lock."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._acquired = lock  # only the thread that holds it writes or reads this

    def __exit__(self, *error: object) -> None:
        self._acquired.release()


_threads = Alive[threading.Thread]()


def start(name: str, work: Callable[[], object]) -> threading.Thread | None:
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
    """Raise ``CancelledError`` in a thread of ``start`` when the process ends; it is called
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


def submit_task(
    pool: ThreadPoolExecutor, function: Callable[..., Result], *args: Any
) -> Future[Result]:
    """The future of a call on a thread of the pool; where the main thread has ended, of one that
    the caller has made.  Raises ``RuntimeError`` for a pool that was shut down before."""
    try:
        return pool.submit(function, *args)
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
    future: Future[Result] = Future()
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 - who asks for the result raises it
        future.set_exception(error)
    return future


def run_undisturbed(call: Callable[[], Result]) -> Result:
    """``call()``, which may parse and can be repeated, in spite of other threads that parse."""
    for _ in range(ATTEMPTS - 1):
        try:
            return call()
        except SystemError:
            continue
    return call()


@dataclass(eq=False)
class SingleFlight(Generic[Key, Value]):
    """Values that are being made, by key.  Thread-safe."""

    _pending: dict[Key, Future[Value]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        renew_after_fork(self)

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
                    key, value = find()
                    if value is not None:
                        return value
                    pending = self._pending.get(key)
                    if pending is None:
                        pending = mine = Future()
                        self._pending[key] = mine
                if mine is not None:
                    value = make(key)
                    self._remove(key, mine)
                    mine.set_result(value)
                return pending.result()
            except BaseException as error:
                if mine is not None:
                    self._remove(key, mine)
                    if not mine.done():
                        mine.set_exception(error)
                if mine is not None or not _was_interrupted(pending, error):
                    raise

    def _remove(self, key: Key, mine: Future[Value]) -> None:
        """Let no more threads wait for a value."""
        with self._lock:
            if self._pending.get(key) is mine:
                del self._pending[key]


def _was_interrupted(pending: Future[Value] | None, error: BaseException) -> bool:
    """Whether an error is the Ctrl-C of the thread that one waited for."""
    if isinstance(error, Exception) or pending is None or not pending.done():
        return False
    return pending.exception() is error
