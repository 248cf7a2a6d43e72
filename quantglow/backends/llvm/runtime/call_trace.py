"""Records when each kernel of a table runs, and on which thread, where threads share it.

In a traced run every row of a table names ``traced`` in place of its kernel, and a record in place
of its arguments.  ``traced`` reads the clock, calls the kernel with its own arguments, reads the
clock again and adds an event to a log that all threads share.  The run-time system does not change,
and other runs only look whether there is a trace.  Records and log are kept between the runs of a
table; events become objects when the trace is written.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import addresses
from quantglow.backends.llvm.runtime.call_times import CallFacts
from quantglow.backends.llvm.runtime.table_runner import filled
from quantglow.backends.llvm.runtime.trace_clock import Clock, clock_of, with_waits
from quantglow.foreign_types import Array
from quantglow.timeline import KERNEL, Event, Trace

RECORD_WORDS = 4
"""Words that stand for the arguments of a kernel: kernel, arguments, log, number of the row."""
EVENT_WORDS = 5
"""Words of an event: row, thread, clock before and after, items.  The first event of a log is its
head: events so far, and room for events."""

LOG_EVENTS = 4096
"""Events for which a log has room, or those of one run if they are more."""

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


@cache
def _entry(target: Target) -> int:
    """The address of ``traced``."""
    (address,) = addresses(target, [filled(_TRACED, target.waiting)], "traced")
    return address


@dataclass(eq=False)
class _EventLog:
    """The events of one table in one trace.

    array  events since the last page; ``seen`` of them are of runs that ended
    pages  events before them
    """

    trace: weakref.ref[Trace]
    calls: Sequence[CallFacts]
    clock: Clock
    array: Array
    pages: list[Array] = field(default_factory=list)
    seen: int = 0

    @property
    def room(self) -> int:
        """Events that the array takes."""
        return len(self.array) - 1

    def turn_page(self) -> None:
        """Make room in the array."""
        page, self.seen = self.array[1 : 1 + self.seen].copy(), 0
        self.pages.append(page)
        self.array[0, 0] = 0

    def events(self) -> Iterator[Event]:
        """Kernels, and the gaps between those of one thread."""
        clock = self.clock.ended()
        found: dict[int, list[Event]] = defaultdict(list)
        for page in [*self.pages, self.array[1 : 1 + self.seen]]:
            for row, thread, before, after, items in page.tolist():
                call, interval = self.calls[row], (clock.at(before), clock.at(after))
                facts = {"items": items, "op": call.op, "kernel": call.label}
                found[thread].append(Event(call.name, KERNEL, thread, *interval, facts))
        return with_waits(found.values())


@dataclass(eq=False)
class TracedTable:
    """A table (uint64 [n, 4]) whose calls are recorded between ``begin`` and ``end``.  Nobody else
    may use it meanwhile.

    plain, traced  the first two columns: kernels and arguments, and what stands for them
    records        the rows that ``traced`` points to
    events         of one walk of the table
    log            that of the latest trace, to which the records point
    """

    target: Target
    table: Array
    calls: Sequence[CallFacts]
    plain: Array
    traced: Array
    records: Array
    events: int
    log: _EventLog | None = None

    @staticmethod
    def of(target: Target, table: Array, calls: Sequence[CallFacts]) -> TracedTable:
        """A table with the rows ``calls``."""
        plain, rows = table[:, :2].copy(), np.arange(len(table))
        records = np.zeros((len(table), RECORD_WORDS), np.uint64)
        records[:, :2], records[:, 3] = plain, rows
        traced = np.empty_like(plain)
        traced[:, 0] = _entry(target)
        traced[:, 1] = records.ctypes.data + rows * RECORD_WORDS * records.itemsize
        events = int(np.maximum(table[:, 3], 1).sum())
        return TracedTable(target, table, calls, plain, traced, records, events)

    def begin(self, trace: Trace, turns: int) -> None:
        """Record at most ``turns`` walks of the table."""
        log, wanted = self.log, turns * self.events
        if log is None or log.trace() is not trace or log.room < wanted:
            log = self._new_log(trace, max(wanted, LOG_EVENTS))
        elif log.room - log.seen < wanted:
            log.turn_page()
        self.table[:, :2] = self.traced

    def end(self) -> None:
        """Record no more; the events so far are those of the trace."""
        self.table[:, :2] = self.plain
        if self.log is not None:  # as where there was no memory for one
            self.log.seen = min(int(self.log.array[0, 0]), self.log.room)

    def _new_log(self, trace: Trace, room: int) -> _EventLog:
        array = np.zeros((room + 1, EVENT_WORDS), np.int64)
        array[0, 1] = room
        self.records[:, 2] = array.ctypes.data
        self.log = _EventLog(weakref.ref(trace), self.calls, clock_of(self.target), array)
        trace.later(self.log.events)
        return self.log
