"""Independent NumPy work on several cores, with the same results on any number of them.

NumPy's BLAS splits each product among its threads, which wait for each other in a loop.  Most
products here take a millisecond: two threads win little, and where another process needs a core,
every product waits for it (on a busy machine with two cores, the recovery of ResNet-50 took up to
24 s, and 4.5 s at other times).  Inside ``side_by_side`` a product has one thread, and ``each``
does several things at once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from quantglow.support.processes.interrupts import ending
from quantglow.support.processes.system import at_fork
from quantglow.support.processes.threads import submit_task

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _WorkerPool:
    executor: ThreadPoolExecutor
    helpers: int
    process: int


_LIMITING = threading.Lock()
"""Held while the number of BLAS's threads is read and limited, or restored."""

_POOL: ContextVar[_WorkerPool | None] = ContextVar("quantglow_workers", default=None)


def _renew_lock() -> None:
    """Make a lock that no thread holds: one that held it is missing in a forked child."""
    global _LIMITING
    _LIMITING = threading.Lock()


at_fork(child=_renew_lock)


def _pool() -> _WorkerPool | None:
    """The threads of the block around; a forked child has none of them, and works alone."""
    pool = _POOL.get()
    return pool if pool is not None and pool.process == os.getpid() else None


@contextmanager
def side_by_side() -> Iterator[None]:
    """Inside, ``each`` has as many threads as BLAS had; BLAS has one, in the whole process, until
    the first of the blocks that overlap ends.

    So ``OPENBLAS_NUM_THREADS`` and ``threadpoolctl`` bound both.  Nested, it changes nothing; a
    second thread of the process finds BLAS with one thread, and works alone.
    """
    if _pool() is not None:
        yield
        return
    with _one_blas_thread() as before:
        if before == 1:
            yield
            return
        with ThreadPoolExecutor(before - 1, "quantglow-worker") as executor:
            token = _POOL.set(_WorkerPool(executor, before - 1, os.getpid()))
            try:
                yield
            finally:
                _POOL.reset(token)


@contextmanager
def _one_blas_thread() -> Iterator[int]:
    """Set BLAS to one thread, in the whole process; give the number that it had before.

    Reading, limiting and restoring are each alone: of blocks that overlap, the one that found
    several threads restores them, and the others change nothing.
    """
    with ExitStack() as limited:
        with _LIMITING:
            blas: Any = ThreadpoolController().select(user_api="blas")
            threads = max((library["num_threads"] for library in blas.info()), default=1)
            if threads > 1:
                limited.enter_context(blas.limit(limits=1))
        try:
            yield threads
        finally:
            with _LIMITING:
                limited.close()


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """``[function(item) for item in items]``, several at once inside ``side_by_side``.

    The caller works, too: it never waits for a thread that has not begun.  The error raised is that
    of the first item that has one.  Nested calls of ``each`` run on one thread.
    """
    pool, inputs = _pool(), list(items)
    if pool is None or len(inputs) < 2:
        return [function(item) for item in inputs]
    results: dict[int, Result] = {}
    errors: dict[int, Exception] = {}
    waiting = deque(enumerate(inputs))

    def work() -> None:
        _POOL.set(None)
        while waiting:
            try:
                index, item = waiting.popleft()
            except IndexError:  # Another thread took the last one.
                return
            try:
                results[index] = function(item)
            except Exception as error:  # noqa: BLE001 - it is raised below, by the caller
                errors[index] = error
                waiting.clear()

    helping: list[Future[None]] = []
    with ending(helping):
        for _ in range(min(pool.helpers, len(inputs) - 1)):
            helping.append(submit_task(pool.executor, copy_context().run, work))
        try:
            copy_context().run(work)
        finally:
            waiting.clear()
            for helper in helping:
                helper.cancel()
    if errors:
        raise errors[min(errors)]
    return [results[index] for index in range(len(inputs))]


def at_once() -> int:
    """Number of items that ``each`` computes at once here."""
    pool = _pool()
    return 1 if pool is None else pool.helpers + 1


def later(function: Callable[[Item], Result], item: Item) -> Callable[[], Result]:
    """A function that returns ``function(item)``, computed by another thread inside
    ``side_by_side``."""
    pool = _pool()
    if pool is None:
        result = function(item)
        return lambda: result
    return submit_task(pool.executor, copy_context().run, _alone, function, item).result


def _alone(function: Callable[[Item], Result], item: Item) -> Result:
    _POOL.set(None)
    return function(item)
