"""Records when each kernel of a table runs, where one thread walks the table.

``walk_traced`` takes the place of ``run_alone``.  It reads the clock before the first kernel and
after each: the end of one is the beginning of the next.  A run leaves its thread and these times in
a log of the context, one word each, at places that follow from the row; the table does not change.
Events become objects when the trace is written.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise

import numpy as np

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import addresses
from quantglow.backends.llvm.runtime.call_times import CallFacts
from quantglow.backends.llvm.runtime.table_runner import filled
from quantglow.backends.llvm.runtime.trace_clock import Clock, clock_of, with_waits
from quantglow.backends.llvm.table_walk import CALL_OF_ENTRY
from quantglow.foreign_types import Array
from quantglow.timeline import KERNEL, Event, Trace

PAGE_WORDS = 4096
"""Words for which a log has room, or those of one run if they are more."""

OWN_WORDS = 2
"""Words of a run before the times after its kernels: its thread, and the time before the first."""

_STATE = {"table": 0, "count": 1, "place": 2, "last": 3}
"""Words of the argument: the table and its rows, where the next run is recorded, and the last
place at which a run has room."""

_WALK = f"""
<declarations>declare i64 @pthread_self()
define i64 @walk_traced(ptr %state) nounwind {{
entry:
  %table = load ptr, ptr %state
  %cp = getelementptr i64, ptr %state, i64 {_STATE["count"]}
  %count = load i64, ptr %cp
  %pp = getelementptr i64, ptr %state, i64 {_STATE["place"]}
  %place = load ptr, ptr %pp
  %lp = getelementptr i64, ptr %state, i64 {_STATE["last"]}
  %last = load ptr, ptr %lp
  %full = icmp ugt ptr %place, %last
  br i1 %full, label %none, label %begin
none:
  ret i64 0
begin:
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %place
  %times = getelementptr i64, ptr %place, i64 {OWN_WORDS}
  %fp = getelementptr i64, ptr %place, i64 1
  %before = <clock>
  store i64 %before, ptr %fp
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %begin ], [ %next, %body ]
{CALL_OF_ENTRY}  call void %fn(ptr %args, i64 0, i64 %items)
  %after = <clock>
  %tp = getelementptr i64, ptr %times, i64 %i
  store i64 %after, ptr %tp
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  %behind = getelementptr i64, ptr %times, i64 %count
  store ptr %behind, ptr %pp
  ret i64 1
}}
"""


@cache
def _walk_of(target: Target) -> Callable[[int], int]:
    """``walk_traced``: takes a state; 0 where the log has no room, and nothing is done."""
    (address,) = addresses(target, [filled(_WALK, target.waiting)], "walk_traced")
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)


@dataclass(eq=False)
class _RunLog:
    """The runs of one table in one trace.

    page   words of the runs since the last page; ``state`` says how many
    pages  those before them
    """

    calls: Sequence[CallFacts]
    items: Sequence[int]
    clock: Clock
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
        found: dict[int, list[Event]] = defaultdict(list)
        for page in [*self.pages, self.written]:
            for thread, *ticks in page.reshape(-1, self.run_words).tolist():
                intervals = pairwise(map(clock.at, ticks))
                for call, items, interval in zip(self.calls, self.items, intervals, strict=True):
                    facts = {"items": items, "op": call.op, "kernel": call.label}
                    found[thread].append(Event(call.name, KERNEL, thread, *interval, facts))
        return with_waits(found.values())


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
        clock, items = clock_of(self.target), self.table[:, 2].tolist()
        log = _RunLog(self.calls, items, clock, state, page)
        log.open(page)
        self.trace = weakref.ref(trace)
        self.step = partial(_walk_of(self.target), state.ctypes.data)
        trace.later(log.events)
        return log
