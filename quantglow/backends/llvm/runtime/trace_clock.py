"""Ticks of compiled code's clock as times of a trace, and the gaps between kernels."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import addresses
from quantglow.backends.llvm.runtime.table_runner import filled
from quantglow.timeline import WAITING, Event

SHORTEST_WAIT = 1e-6
"""Seconds between two kernels of a thread that are shown as waiting."""

_TICKS = """
<declarations>define i64 @ticks() nounwind {
  %now = <clock>
  ret i64 %now
}
"""


@cache
def _ticks(target: Target) -> Callable[[], int]:
    """The function that reads the clock."""
    (address,) = addresses(target, [filled(_TICKS, target.waiting)], "ticks")
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)


@dataclass(frozen=True)
class Clock:
    """Ticks and seconds of one moment, and seconds for each tick."""

    read: Callable[[], int]
    ticks: int
    seconds: float
    period: float = 0.0

    @staticmethod
    def start(read: Callable[[], int]) -> Clock:
        return Clock(read, read(), time.perf_counter())

    def ended(self) -> Clock:
        """The clock with its rate, which few processors state."""
        now = Clock.start(self.read)
        spent = max(now.ticks - self.ticks, 1)
        return replace(self, period=(now.seconds - self.seconds) / spent)

    def at(self, ticks: int) -> float:
        """Seconds of ``time.perf_counter``."""
        return self.seconds + (ticks - self.ticks) * self.period


def clock_of(target: Target) -> Clock:
    """The clock of a target, started now."""
    return Clock.start(_ticks(target))


def with_waits(threads: Iterable[list[Event]]) -> Iterator[Event]:
    """The kernels of each thread, and the times between them."""
    for own in threads:
        own.sort(key=lambda event: event.begin)
        yield from own
        yield from _waits(own)


def _waits(events: Iterable[Event]) -> Iterator[Event]:
    for before, after in pairwise(events):
        if after.begin - before.end > SHORTEST_WAIT:
            yield Event("waiting", WAITING, before.thread, before.end, after.begin)
