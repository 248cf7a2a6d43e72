"""Traces of kernel calls on one thread or several, and the clock of their times.

On one thread, ``walk_traced`` takes the place of ``run_alone``.  It reads the clock before the
first kernel and after each: the end of one is the beginning of the next.  A run leaves its thread
and these times in a log of the context, one word each, at places that follow from the row; the
table does not change.

On several threads, every row of the table names ``traced`` in place of its kernel, and a record in
place of its arguments.  ``traced`` reads the clock, calls the kernel with its own arguments, reads
the clock again and adds an event to a log that all threads share.  The run-time system does not
change, and other runs only look whether there is a trace.  Records and log are kept between the
runs of a table.

Events become objects when the trace is written.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise

import numpy as np

from quantglow.codegen.llvm.call_profile import CallFacts
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.table_walk import CALL_OF_ENTRY, read_template
from quantglow.runtime.jit.library import addresses
from quantglow.runtime.native.table_runner import fill_waits
from quantglow.support.arrays import Array
from quantglow.support.timeline import KERNEL, WAITING, Event, Trace

SHORTEST_WAIT = 1e-6
"""Seconds between two kernels of a thread that are shown as waiting."""

TICKS = read_template("ticks")

PAGE_WORDS = 4096
"""Words for which the log of a walk has room, or those of one run if they are more."""

OWN_WORDS = 2
"""Words of a run before the times after its kernels: its thread, and the time before the first."""

_STATE = {"table": 0, "count": 1, "place": 2, "last": 3}
"""Words of the argument: the table and its rows, where the next run is recorded, and the last
place at which a run has room."""

WALK_TRACED = read_template(
    "walk_traced",
    {
        **{f"state.{name}": word for name, word in _STATE.items()},
        "run.words": OWN_WORDS,
        "entry": CALL_OF_ENTRY,
    },
)

RECORD_WORDS = 4
"""Words that stand for the arguments of a kernel: kernel, arguments, log, number of the row."""
EVENT_WORDS = 5
"""Words of an event: row, thread, clock before and after, items.  The first event of a log is its
head: events so far, and room for events."""

LOG_EVENTS = 4096
"""Events for which a log has room, or those of one run if they are more."""

TRACED = read_template("traced", {"event.words": EVENT_WORDS})


@cache
def _ticks(target: Target) -> Callable[[], int]:
    """The function that reads the clock."""
    (address,) = addresses(target, [fill_waits(TICKS, target.waiting)], "ticks")
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)


@dataclass(frozen=True)
class TickClock:
    """Ticks and seconds of one moment, and seconds for each tick."""

    read: Callable[[], int]
    ticks: int
    seconds: float
    period: float = 0.0

    @staticmethod
    def start(read: Callable[[], int]) -> TickClock:
        return TickClock(read, read(), time.perf_counter())

    def ended(self) -> TickClock:
        """The clock with its rate, which few processors state."""
        now = TickClock.start(self.read)
        spent = max(now.ticks - self.ticks, 1)
        return replace(self, period=(now.seconds - self.seconds) / spent)

    def at(self, ticks: int) -> float:
        """Seconds of ``time.perf_counter``."""
        return self.seconds + (ticks - self.ticks) * self.period


def _tick_clock(target: Target) -> TickClock:
    """The clock of a target, started now."""
    return TickClock.start(_ticks(target))


def _with_waits(threads: Iterable[list[Event]]) -> Iterator[Event]:
    """The kernels of each thread, and the times between them."""
    for events in threads:
        events.sort(key=lambda event: event.begin)
        yield from events
        yield from _waits(events)


def _waits(events: Iterable[Event]) -> Iterator[Event]:
    for before, after in pairwise(events):
        if after.begin - before.end > SHORTEST_WAIT:
            yield Event("waiting", WAITING, before.thread, before.end, after.begin)


@cache
def _traced_walk(target: Target) -> Callable[[int], int]:
    """``walk_traced``: takes a state; 0 where the log has no room, and nothing is done."""
    (address,) = addresses(target, [fill_waits(WALK_TRACED, target.waiting)], "walk_traced")
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)


@dataclass(eq=False)
class _RunLog:
    """The runs of one table in one trace.

    page   words of the runs since the last page; ``state`` says how many
    pages  those before them
    """

    calls: Sequence[CallFacts]
    items: Sequence[int]
    clock: TickClock
    state: Array
    page: Array
    pages: list[Array] = field(default_factory=list)

    @property
    def run_words(self) -> int:
        """Words of a run."""
        return OWN_WORDS + len(self.calls)

    def turn_page(self) -> None:
        """Make room."""
        self.pages.append(self.written)
        self.open(np.empty_like(self.page))

    def open(self, page: Array) -> None:
        """Record in a page from now on."""
        self.page, begin = page, page.ctypes.data
        self.state[_STATE["place"]] = begin
        self.state[_STATE["last"]] = begin + page.itemsize * (len(page) - self.run_words)

    @property
    def written(self) -> Array:
        """The words of the page so far."""
        nbytes = int(self.state[_STATE["place"]]) - self.page.ctypes.data
        return self.page[: nbytes // self.page.itemsize]

    def events(self) -> Iterator[Event]:
        """Kernels, and the gaps between those of one thread."""
        clock = self.clock.ended()
        events: dict[int, list[Event]] = defaultdict(list)
        for page in [*self.pages, self.written]:
            for thread, *ticks in page.reshape(-1, self.run_words).tolist():
                intervals = pairwise(map(clock.at, ticks))
                for call, items, interval in zip(self.calls, self.items, intervals, strict=True):
                    facts = {"items": items, "op": call.op, "kernel": call.label}
                    events[thread].append(Event(call.name, KERNEL, thread, *interval, facts))
        return _with_waits(events.values())


@dataclass(eq=False)
class RecordedWalk:
    """Runs a table (uint64 [n, 4]) on the calling thread and records its calls.  Nobody else may
    use it meanwhile.

    log    that of the latest trace
    trace  gives that trace while it lives
    step   one walk; 0 where the log has no room, and nothing is done
    """

    target: Target
    table: Array
    calls: Sequence[CallFacts]
    log: _RunLog | None = None
    trace: Callable[[], Trace | None] = lambda: None
    step: Callable[[], int] = lambda: 0

    def run(self, trace: Trace) -> None:
        """Run the table once, in a log that has room."""
        if self.log is None or self.trace() is not trace:
            self.log = self._new_log(trace)
        if not self.step():
            self.log.turn_page()
            self.step()

    def _new_log(self, trace: Trace) -> _RunLog:
        state = np.zeros(len(_STATE), np.int64)
        state[_STATE["table"]] = self.table.ctypes.data
        state[_STATE["count"]] = len(self.table)
        page = np.empty(max(OWN_WORDS + len(self.calls), PAGE_WORDS), np.int64)
        clock, items = _tick_clock(self.target), self.table[:, 2].tolist()
        log = _RunLog(self.calls, items, clock, state, page)
        log.open(page)
        self.trace = weakref.ref(trace)
        self.step = partial(_traced_walk(self.target), state.ctypes.data)
        trace.later(log.events)
        return log


@cache
def _entry(target: Target) -> int:
    """The address of ``traced``."""
    (address,) = addresses(target, [fill_waits(TRACED, target.waiting)], "traced")
    return address


@dataclass(eq=False)
class _EventLog:
    """The events of one table in one trace.

    array  events since the last page; ``finished`` of them are of runs that ended
    pages  events before them
    """

    trace: weakref.ref[Trace]
    calls: Sequence[CallFacts]
    clock: TickClock
    array: Array
    pages: list[Array] = field(default_factory=list)
    finished: int = 0

    @property
    def room(self) -> int:
        """Events that the array takes."""
        return len(self.array) - 1

    def turn_page(self) -> None:
        """Make room in the array."""
        page, self.finished = self.array[1 : 1 + self.finished].copy(), 0
        self.pages.append(page)
        self.array[0, 0] = 0

    def events(self) -> Iterator[Event]:
        """Kernels, and the gaps between those of one thread."""
        clock = self.clock.ended()
        events: dict[int, list[Event]] = defaultdict(list)
        for page in [*self.pages, self.array[1 : 1 + self.finished]]:
            for row, thread, before, after, items in page.tolist():
                call, interval = self.calls[row], (clock.at(before), clock.at(after))
                facts = {"items": items, "op": call.op, "kernel": call.label}
                events[thread].append(Event(call.name, KERNEL, thread, *interval, facts))
        return _with_waits(events.values())


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
        log, room = self.log, turns * self.events
        if log is None or log.trace() is not trace or log.room < room:
            log = self._new_log(trace, max(room, LOG_EVENTS))
        elif log.room - log.finished < room:
            log.turn_page()
        self.table[:, :2] = self.traced

    def end(self) -> None:
        """Record no more; the events so far are those of the trace."""
        self.table[:, :2] = self.plain
        if self.log is not None:  # as where there was no memory for one
            self.log.finished = min(int(self.log.array[0, 0]), self.log.room)

    def _new_log(self, trace: Trace, room: int) -> _EventLog:
        array = np.zeros((room + 1, EVENT_WORDS), np.int64)
        array[0, 1] = room
        self.records[:, 2] = array.ctypes.data
        self.log = _EventLog(weakref.ref(trace), self.calls, _tick_clock(self.target), array)
        trace.later(self.log.events)
        return self.log
