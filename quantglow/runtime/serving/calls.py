"""Calls that wait, the threads that take them, and the batches that calls become.

A batch has the inputs of its calls one after the other along axis 0.  The measured speed of each
batch size says how many samples to run at once, and which calls are no batch.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import QueueError, QueueFullError
from quantglow.support.processes.threads import Alive, renew_after_fork

TRIALS = 3
"""Runs after which the speed of a size is known.  The first one may compile a program."""

MOST_KINDS = 256
"""Kinds of calls whose speed is remembered."""


@dataclass
class BatchSpeed:
    """The fastest run of each number of samples of each kind, in seconds for each sample."""

    _runs: dict[Hashable, dict[int, list[float]]] = field(default_factory=dict)
    _joins: dict[Hashable, bool] = field(default_factory=dict)

    def joins(self, kind: Hashable) -> bool | None:
        """Whether calls of a kind may be joined; None: it is not known."""
        return self._joins.get(kind)

    def note(self, kind: Hashable, joins: bool) -> None:
        """Note whether calls of a kind may be joined."""
        if kind not in self._joins and len(self._joins) == MOST_KINDS:
            self._joins.clear()
        self._joins[kind] = joins

    def record(self, kind: Hashable, samples: int, seconds: float) -> None:
        """Note a run of calls of a kind."""
        if kind not in self._runs and len(self._runs) == MOST_KINDS:
            self._runs.clear()
        trials = self._runs.setdefault(kind, {}).setdefault(samples, [])
        trials.append(seconds / samples)
        trials.sort()
        del trials[TRIALS:]

    def best(self, kind: Hashable, sizes: Sequence[int]) -> int:
        """The size to run: the smallest that was not run often enough, else the fastest.

        ``sizes``: possible numbers of samples, in ascending order.
        """
        runs, tried = self._runs.get(kind, {}), sizes_tried(sizes)
        unknown = [size for size in tried if len(runs.get(size, ())) < TRIALS]
        return unknown[0] if unknown else min(tried, key=lambda size: runs[size][0])


def sizes_tried(sizes: Sequence[int]) -> list[int]:
    """Powers of two, and these times the first one: few runs show which of them is fastest."""
    first = max(sizes[0], 1)
    return [
        size
        for size in sizes
        if _is_power_of_two(size) or (size % first == 0 and _is_power_of_two(size // first))
    ]


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


@dataclass(eq=False)
class WaitingCall:
    """A call that waits: its feeds, the outputs that it wants, and the second from which on it
    waits for others."""

    feeds: Mapping[str, Any]
    output_names: Sequence[str] | None
    arrived: float
    future: Future[list[Any]] = field(default_factory=Future)

    @cached_property
    def kind(self) -> Hashable:
        """Names, types and shapes of single samples; None for a call that joins no other."""
        arrays = [a for a in self.feeds.values() if isinstance(a, np.ndarray) and a.ndim and len(a)]
        if not arrays or len(arrays) < len(self.feeds) or len({len(a) for a in arrays}) > 1:
            return None
        return tuple(sorted((n, a.dtype.str, a.shape[1:]) for n, a in self.feeds.items()))

    @cached_property
    def samples(self) -> int:
        """Length of axis 0 of all inputs; 1 for a call that joins no other."""
        return 1 if self.kind is None else len(next(iter(self.feeds.values())))


def join(calls: Sequence[WaitingCall]) -> dict[str, Array]:
    """The feeds of several calls of one kind as one batch."""
    return {name: np.concatenate([call.feeds[name] for call in calls]) for name in calls[0].feeds}


def parts(outputs: Mapping[str, Array], calls: Sequence[WaitingCall]) -> Iterator[list[Array]]:
    """The results of each call, from the outputs of their batch: copies, so that a result which is
    kept does not keep those of others."""
    bounds = accumulate((call.samples for call in calls), initial=0)
    for call, (begin, end) in zip(calls, pairwise(bounds), strict=True):
        names = outputs if call.output_names is None else call.output_names
        yield [outputs[name][begin:end].copy() for name in names]


Run = Callable[[Sequence[WaitingCall]], None]
"""Runs calls of one kind and settles their futures; it does not raise."""


@dataclass
class QueueLimits:
    """``streams`` threads; batches of at most ``max_batch`` samples, for which a call waits at most
    ``max_delay`` seconds; at most ``max_waiting`` calls wait."""

    streams: int
    max_batch: int
    max_delay: float
    max_waiting: int | None


@dataclass(eq=False)
class CallQueue:
    """Calls in the order in which they came.  All methods are thread-safe.

    Threads start with the first call.  They know this object and not the queue of the user, so
    that a queue that nobody holds ends.
    """

    limits: QueueLimits
    run: Run
    speed: BatchSpeed
    _calls: deque[WaitingCall] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _threads: list[threading.Thread] = field(default_factory=list)
    _unsettled: set[Future[list[Any]]] = field(default_factory=set)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        _alive.add(self)
        renew_after_fork(self, last=True)

    def add(self, call: WaitingCall) -> None:
        """Let a call wait.  Raises ``QueueError`` and ``QueueFullError``."""
        most = self.limits.max_waiting
        with self._changed:
            if self._is_closed:
                raise QueueError("the queue is closed. Remedy: submit before close().")
            if most is not None and len(self._calls) >= most:
                self._drop_cancelled()
                if len(self._calls) >= most:
                    raise QueueFullError(most)
            while len(self._threads) < self.limits.streams:
                self._start()
            self._calls.append(call)
            self._unsettled.add(call.future)
            self._changed.notify_all()
        call.future.add_done_callback(self._unsettled.discard)

    def stop(self, cancel: bool = False) -> None:
        """Take no more calls; ``cancel`` those that wait."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._calls) if cancel else []
            if cancel:
                self._calls.clear()
            self._changed.notify_all()
        for call in dropped:
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait until all calls that were not cancelled are done, after ``stop``.

        One of the own threads, where a future's callback may close the queue, waits for none: the
        others may wait for it.
        """
        threads = list(self._threads)
        if threading.current_thread() not in threads:
            for thread in threads:
                thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True, name="quantglow-stream")
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise QueueError(f"the system starts no thread: {error}") from error
            self.limits.streams = len(self._threads)
            return
        self._threads.append(thread)

    def _work(self) -> None:
        """A thread: take calls and run them until the queue is closed and empty.

        Whatever goes wrong reaches the callers, and the thread goes on.
        """
        while True:
            try:
                calls = self._take()
            except Exception as error:  # noqa: BLE001 - its caller raises it
                self._refuse_first(error)
                continue
            if not calls:
                return
            running = [c for c in calls if c.future.set_running_or_notify_cancel()]
            try:
                if running:
                    self.run(running)
            except BaseException as error:  # noqa: BLE001 - the callers raise it
                for call in running:
                    with suppress(InvalidStateError):
                        call.future.set_exception(error)
            del calls, running  # feeds and results of a call end with it, not with the next one

    def _drop_cancelled(self) -> None:
        """Let calls that were cancelled wait no longer; the caller holds the lock."""
        for call in [call for call in self._calls if call.future.cancelled()]:
            self._calls.remove(call)
            call.future.set_running_or_notify_cancel()

    def _refuse_first(self, error: Exception) -> None:
        """Settle the first call, which cannot be taken."""
        with self._changed:
            call = self._calls.popleft() if self._calls else None
        if call is not None and call.future.set_running_or_notify_cancel():
            call.future.set_exception(error)

    def _take(self) -> list[WaitingCall]:
        """The calls to run next; none where no more will come."""
        with self._changed:
            while True:
                if not self._calls:
                    if self._is_closed:
                        return []
                    self._changed.wait()
                    continue
                mates, left = self._mates(), self._seconds_left()
                if left > 0 and sum(call.samples for call in mates) < self.limits.max_batch:
                    self._changed.wait(left)
                    continue
                return self._remove(mates)

    def _seconds_left(self) -> float:
        """Seconds that the first call may still wait for others."""
        first = self._calls[0]
        if self._is_closed or self._runs_alone(first):
            return 0.0
        return first.arrived + self.limits.max_delay - time.monotonic()

    def _runs_alone(self, call: WaitingCall) -> bool:
        """Whether no other call may join this one."""
        if self.limits.max_batch == 1 or call.kind is None:
            return True
        return self.speed.joins(call.kind) is False

    def _mates(self) -> list[WaitingCall]:
        """The first call, and those that may be joined to it."""
        first, most = self._calls[0], self.limits.max_batch
        if self._runs_alone(first):
            return [first]
        kind, mates, total = first.kind, [first], first.samples
        for call in list(self._calls)[1:]:
            if total >= most:
                break
            if call.kind == kind and total + call.samples <= most:
                mates.append(call)
                total += call.samples
        return mates

    def _remove(self, mates: Sequence[WaitingCall]) -> list[WaitingCall]:
        """As many of the calls as are fastest together; the others wait no longer, either."""
        totals = list(accumulate(call.samples for call in mates))
        best = self.speed.best(mates[0].kind, totals) if len(mates) > 1 else totals[0]
        count = totals.index(best) + 1
        for call in mates[:count]:
            self._calls.remove(call)
        for call in mates[count:]:
            call.arrived -= self.limits.max_delay
        return list(mates[:count])

    def forget_threads(self) -> None:
        """Let the callers of a forked child know that the threads of its parent are not there."""
        self._calls, self._threads = deque(), []
        self._changed = threading.Condition()
        lost, self._unsettled = list(self._unsettled), set()
        for future in lost:
            # A thread of the parent may have held its lock while the process forked.
            future._condition = threading.Condition()
            with suppress(InvalidStateError):
                future.set_exception(
                    QueueError(
                        "the process forked while the call waited or ran, and only the parent "
                        "goes on with it. Remedy: submit it again in the child."
                    )
                )


_alive = Alive[CallQueue]()


def _close_all() -> None:
    """Cancel all calls that wait, and let those that run end, before the interpreter does."""
    for waiting in _alive:
        waiting.stop(cancel=True)
    for waiting in _alive:
        waiting.join()


atexit.register(_close_all)
