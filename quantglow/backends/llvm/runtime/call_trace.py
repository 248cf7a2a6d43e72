"""Records when each kernel of a table runs, and on which thread.

In a traced run every row of a table names ``traced`` in place of its kernel, and a record in place
of its arguments.  ``traced`` reads the clock, calls the kernel with its own arguments, reads the
clock again and adds an event to a log that all threads share.  The run-time system does not change,
and other runs only look whether there is a trace.
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import addresses
from quantglow.backends.llvm.runtime.call_times import CallFacts
from quantglow.backends.llvm.runtime.table_runner import filled
from quantglow.timeline import KERNEL, WAITING, Event, Trace
from quantglow.types import Array

RECORD_WORDS = 4
"""Words that stand for the arguments of a kernel: kernel, arguments, log, number of the row."""
EVENT_WORDS = 5
"""Words of an event: row, thread, clock before and after, items.  The first event of a log is its
head: events so far, and room for events."""

SHORTEST_WAIT = 1e-6
"""Seconds between two kernels of a thread that are shown as waiting."""

_TRACED = f"""
<declarations>declare i64 @pthread_self()
define void @traced(ptr %record, i64 %begin, i64 %end) nounwind {{
entry:
  %fn = load ptr, ptr %record
  %ap = getelementptr i64, ptr %record, i64 1
  %args = load ptr, ptr %ap
  %lp = getelementptr i64, ptr %record, i64 2
  %log = load ptr, ptr %lp
  %rp = getelementptr i64, ptr %record, i64 3
  %row = load i64, ptr %rp
  %before = <clock>
  call void %fn(ptr %args, i64 %begin, i64 %end)
  %after = <clock>
  %at = atomicrmw add ptr %log, i64 1 monotonic
  %mp = getelementptr i64, ptr %log, i64 1
  %most = load i64, ptr %mp
  %fits = icmp slt i64 %at, %most
  br i1 %fits, label %store, label %done
store:
  %number = add i64 %at, 1
  %event = getelementptr [{EVENT_WORDS} x i64], ptr %log, i64 %number
  store i64 %row, ptr %event
  %thread = call i64 @pthread_self()
  %tp = getelementptr i64, ptr %event, i64 1
  store i64 %thread, ptr %tp
  %bp = getelementptr i64, ptr %event, i64 2
  store i64 %before, ptr %bp
  %fp = getelementptr i64, ptr %event, i64 3
  store i64 %after, ptr %fp
  %items = sub i64 %end, %begin
  %ip = getelementptr i64, ptr %event, i64 4
  store i64 %items, ptr %ip
  br label %done
done:
  ret void
}}
"""

_TICKS = """
<declarations>define i64 @ticks() nounwind {
  %now = <clock>
  ret i64 %now
}
"""


@dataclass(frozen=True)
class _Entries:
    """The address of ``traced``, and the function that reads the clock."""

    traced: int
    ticks: Any


@cache
def _entries(target: Target) -> _Entries:
    (traced,) = addresses(target, [filled(_TRACED, target.waiting)], "traced")
    (ticks,) = addresses(target, [filled(_TICKS, target.waiting)], "ticks")
    return _Entries(traced, ctypes.CFUNCTYPE(ctypes.c_int64)(ticks))


@contextmanager
def traced_calls(
    trace: Trace, target: Target, tables: Sequence[Array], calls: Sequence[CallFacts], turns: int
) -> Iterator[None]:
    """Inside, kernels of the tables (uint64 [n, 4], each with the rows ``calls``) are recorded.

    Each table is walked at most ``turns`` times.  Nobody else may use the tables meanwhile.
    """
    entries = _entries(target)
    room = turns * sum(int(np.maximum(table[:, 3], 1).sum()) for table in tables)
    log = np.zeros((room + 1, EVENT_WORDS), np.int64)
    log[0, 1] = room
    plain = [table[:, :2].copy() for table in tables]
    records = [_record(table, log) for table in tables]
    for table, record in zip(tables, records, strict=True):
        table[:, 0] = entries.traced
        table[:, 1] = record.ctypes.data + np.arange(len(table)) * RECORD_WORDS * record.itemsize
    clock = _Clock.start(entries.ticks)
    try:
        yield
    finally:
        for table, before in zip(tables, plain, strict=True):
            table[:, :2] = before
        events = log[1 : 1 + min(int(log[0, 0]), room)]
        trace.later(partial(_events, events, calls, clock.ended(entries.ticks)))


def _record(table: Array, log: Array) -> Array:
    """The records of a table's rows."""
    record = np.empty((len(table), RECORD_WORDS), np.uint64)
    record[:, :2] = table[:, :2]
    record[:, 2] = log.ctypes.data
    record[:, 3] = np.arange(len(table))
    return record


@dataclass(frozen=True)
class _Clock:
    """Ticks and seconds of one moment, and seconds for each tick."""

    ticks: int
    seconds: float
    period: float = 0.0

    @staticmethod
    def start(ticks: Any) -> _Clock:
        return _Clock(ticks(), time.perf_counter())

    def ended(self, ticks: Any) -> _Clock:
        """The clock with its rate, which few processors state."""
        now = _Clock.start(ticks)
        spent = max(now.ticks - self.ticks, 1)
        return _Clock(self.ticks, self.seconds, (now.seconds - self.seconds) / spent)

    def at(self, ticks: int) -> float:
        """Seconds of ``time.perf_counter``."""
        return self.seconds + (ticks - self.ticks) * self.period


def _events(events: Array, calls: Sequence[CallFacts], clock: _Clock) -> Iterator[Event]:
    """Kernels, and the gaps between those of one thread."""
    found: dict[int, list[Event]] = defaultdict(list)
    for row, thread, before, after, items in events.tolist():
        call, interval = calls[row], (clock.at(before), clock.at(after))
        facts = {"items": items, "op": call.op, "kernel": call.label}
        found[thread].append(Event(call.name, KERNEL, thread, *interval, facts))
    for own in found.values():
        own.sort(key=lambda event: event.begin)
        yield from own
        yield from _waits(own)


def _waits(events: Iterable[Event]) -> Iterator[Event]:
    """The times between the kernels of a thread."""
    for before, after in pairwise(events):
        if after.begin - before.end > SHORTEST_WAIT:
            yield Event("waiting", WAITING, before.thread, before.end, after.begin)
