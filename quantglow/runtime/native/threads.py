"""Tables of calls run alone or with worker threads, which are placed on processors.

A worker that waits on the caller's own processor is of no use until the system moves it.  Most
systems soon do; some, virtual machines among them, wake a thread again and again where it slept,
though another processor is idle.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.runtime.native.table_runner import CLAIM_WORDS, POOL, entries
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError
from quantglow.support.processes.system import at_fork, c_function

PATIENCE = 16
"""Number of calls in a row for which a worker may stay on the caller's processor."""

_pools: dict[tuple[Target, int], ThreadPool] = {}
_pools_lock = threading.Lock()


def _find_processor() -> Callable[[], int] | None:
    """The C library's function that tells the processor of the calling thread."""
    function: Callable[[], int] | None = c_function("sched_getcpu")
    return function if function is not None and hasattr(os, "sched_setaffinity") else None


current_processor = _find_processor()


@dataclass
class WorkerPlacement:
    """``workers``: the system's numbers of threads; ``processors``: on which each last ran.

    Workers are kept off the caller's processor only while it stays there itself: where the system
    moves threads about, it knows better.
    """

    workers: Sequence[int]
    processors: Array
    together: int = 0
    forbidden: int | None = None

    def update(self) -> None:
        """To be called before work is handed out."""
        if current_processor is None:
            return
        here = current_processor()
        if self.forbidden is not None:
            if here != self.forbidden:
                self.forbidden = None
                self._allow([sorted(os.sched_getaffinity(0))] * len(self.workers))
            return
        self.together = self.together + 1 if here in self.processors.tolist() else 0
        if self.together >= PATIENCE:
            self.together, self.forbidden = 0, here
            others = sorted(os.sched_getaffinity(0) - {here})
            count = len(self.workers)
            self._allow([others[i::count] or others for i in range(count)])

    def _allow(self, processors: Sequence[Sequence[int]]) -> None:
        """For each worker the processors on which it may run."""
        for worker, processor in zip(self.workers, processors, strict=True):
            try:
                if processor:
                    os.sched_setaffinity(worker, processor)
            except OSError:  # these processors were taken from the process meanwhile
                return


class ThreadPool:
    """``threads - 1`` workers that join the caller of ``run``.  Shared by all models of a size."""

    def __init__(self, target: Target, threads: int) -> None:
        self.threads = threads
        self._entries = entries(target)
        first = POOL["processors"] // 8
        self._state = np.zeros(first + threads, np.int64)
        self._state[first:] = -1
        self._claims: list[Array] = []
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        try:
            for tid in range(1, threads):
                self._workers.append(self._start(tid))
        except RuntimeError as error:
            started = len(self._workers)
            self.close()
            raise BackendError(
                f"the system starts {started} of {threads - 1} worker threads: {error}. "
                f"Remedy: num_threads={started + 1}, or look at the limits of the process."
            ) from error
        numbers = [worker.native_id or 0 for worker in self._workers]
        self._placement = WorkerPlacement(numbers, self._state[first + 1 :])

    def _start(self, tid: int) -> threading.Thread:
        """A worker.  Raises ``RuntimeError`` where the system has no thread for it."""
        arguments = (self._state.ctypes.data, tid, self.threads, 0)
        worker = threading.Thread(
            target=self._entries.work, args=arguments, daemon=True, name=f"quantglow-{tid}"
        )
        worker.start()
        return worker

    def run(self, table: Array) -> None:
        """Execute a table of kernel calls; one inference at a time."""
        if not len(table):
            return
        with self._lock:
            self._reserve(len(table))
            self._placement.update()
            self._entries.run_shared(
                self._state.ctypes.data, table.ctypes.data, len(table), self.threads
            )

    def _reserve(self, count: int) -> None:
        """Claims for ``count`` entries.  Outgrown ones stay: a late worker may still look there."""
        if self._claims and len(self._claims[-1]) >= count:
            return
        self._claims.append(np.zeros((max(2 * count, 1024), CLAIM_WORDS), np.int64))
        self._state[POOL["claims"] // 8] = self._claims[-1].ctypes.data

    def close(self) -> None:
        """Let the workers end, and wait until they no longer read the shared state."""
        self._entries.shut(self._state.ctypes.data)
        for worker in self._workers:
            worker.join()


def run_table(target: Target, threads: int, table: Array) -> None:
    """Execute a table (uint64 [n, 4]) on ``threads`` threads."""
    if threads == 1:
        entries(target).run_alone(table.ctypes.data, len(table))
    else:
        _pool(target, threads).run(table)


def table_walk(target: Target, table: Array) -> Callable[[], None]:
    """``run_table`` of a table on the calling thread, as long as the table lives: without what
    looking for its address costs, a microsecond."""
    return partial(entries(target).run_alone, table.ctypes.data, len(table))


def _pool(target: Target, threads: int) -> ThreadPool:
    key = (target, threads)
    pool = _pools.get(key)
    if pool is None:
        with _pools_lock:
            pool = _pools.get(key) or _pools.setdefault(key, ThreadPool(target, threads))
    return pool


def _forget_pools() -> None:
    """A forked child has no workers: it makes pools of its own."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


def _close_pools() -> None:
    """Let all workers end before the interpreter frees the memory that they look at."""
    for pool in list(_pools.values()):
        pool.close()


at_fork(child=_forget_pools)
atexit.register(_close_pools)
