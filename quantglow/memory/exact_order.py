"""The order of execution with the smallest peak, by a best-first search over sets of done tasks.

The bytes that are alive depend on the set of tasks that are done (``tasks``), so of several orders
of one set only the best is continued, as in SERENITY (Ahn et al. 2020, arXiv:2003.02369).  States
leave the queue in the order of their peaks, so the first complete one is optimal, and no order has
a smaller peak than the state that leaves last.

That level makes most tasks free: running a task at once loses nothing if its peak is not above the
level and no more bytes are alive after it than before.  The bytes alive are a submodular function
of the set: what a task adds can only shrink when others are done before.  The same holds for a
chain of tasks up to the first point where it has given back what it took.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from quantglow.memory.tasks import Tasks, members

MAX_RUNS = 400_000
"""Maximum number of tasks that a search runs: a second or two."""

MAX_TRIALS = 6
"""Maximum number of levels that are tried if the search does not end."""

Trace = tuple["Trace", int] | None
"""An order, from its end: the tasks before, and the last one."""


@dataclass(frozen=True)
class BestOrder:
    """The result of a search.

    order   the order of the smallest peak that was found; None if none was
    bound   no order has a smaller peak, in bytes
    """

    order: tuple[int, ...] | None
    bound: int


def best_order(tasks: Tasks, known_peak: int, max_runs: int = MAX_RUNS) -> BestOrder:
    """The order of tasks with the smallest peak, if running so many tasks finds it; else one below
    ``known_peak``, the peak of an order that is known, if there is one."""
    order = _Search(tasks, max_runs, peak_bound(tasks)).result()
    if order.order is not None:
        return order
    return _bisect(tasks, known_peak, order.bound, max_runs)


def _bisect(tasks: Tasks, known_peak: int, bound: int, max_runs: int) -> BestOrder:
    """A good order, by searches that call every task free whose peak is not above a level: the
    higher the level, the sooner they end."""
    best: tuple[int, ...] | None = None
    low, high = bound, known_peak
    for _ in range(MAX_TRIALS):
        level = (low + high) // 2
        if level <= low:
            break
        order = _Search(tasks, max_runs // MAX_TRIALS, level).result()
        if order.bound > level:
            bound = max(bound, order.bound)
        peak = tasks.peak(order.order) if order.order else high
        if peak < high:
            best, high = order.order, peak
        else:
            low = level
        low = max(low, bound)
    return BestOrder(best, bound)


def peak_bound(tasks: Tasks) -> int:
    """Bytes below which no order gets: the largest sum of buffers that must be alive together.

    While a task runs, every buffer that is touched both before and after it in all orders is alive.
    """
    earlier = [0] * len(tasks)
    for task, needed in enumerate(tasks.before):
        earlier[task] = needed
        for other in members(needed):
            earlier[task] |= earlier[other]
    later = [0] * len(tasks)
    for task in reversed(range(len(tasks))):
        for other in tasks.after[task]:
            later[task] |= later[other] | 1 << other
    return max(_least_peak(tasks, task, earlier[task], later[task]) for task in range(len(tasks)))


def _least_peak(tasks: Tasks, task: int, earlier: int, later: int) -> int:
    """Least bytes alive while a task runs, between tasks that come earlier and later in all
    orders."""
    touched = {buffer for step in tasks.steps[task] for buffer in step.touched}
    held = sum(
        nbytes
        for buffer, nbytes in tasks.nbytes.items()
        if tasks.users[buffer] & earlier and tasks.users[buffer] & later and buffer not in touched
    )
    most = 0
    for step, moment in zip(tasks.steps[task], tasks.moments[task], strict=True):
        saved = max(
            (n for needed, no, n in moment.takes if not (needed & later or no & earlier)), default=0
        )
        most = max(most, sum(tasks.nbytes[b] for b in step.touched) - saved)
    return held + most


class _State(NamedTuple):
    """Tasks that are done, bytes alive then, tasks that can run next, and the order so far."""

    done: int
    live: int
    ready: int
    trace: Trace


@dataclass
class _Search:
    """A search that continues each set of tasks once.

    level    peaks up to here count as equal.  If no order is below it at the start, then no order
             has a smaller peak
    queue    states by peak, those with most tasks done first
    known    the smallest peak with which each set of tasks was met
    """

    tasks: Tasks
    runs_left: int
    level: int
    queue: list[tuple[int, int, int, int, _State]] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    expanded: set[int] = field(default_factory=set)

    def result(self) -> BestOrder:
        first = sum(1 << task for task, needed in enumerate(self.tasks.before) if not needed)
        self._push(0, _State(0, 0, first, None))
        while self.queue and self.runs_left > 0:
            peak, *_, state = heapq.heappop(self.queue)
            self.level = max(self.level, peak)
            state = self._with_free_tasks(state)
            if state.done == self.tasks.all:
                return BestOrder(_order(state.trace), self.level)
            if state.done not in self.expanded:
                self.expanded.add(state.done)
                for task in members(state.ready):
                    self._push(*self._after(state, task))
        return BestOrder(None, self.level)

    def _push(self, peak: int, state: _State) -> None:
        """Enqueue a state unless its set of tasks is known with no greater peak."""
        peak = max(peak, self.level)
        if peak < self.known.get(state.done, peak + 1):
            self.known[state.done] = peak
            entry = (peak, -state.done.bit_count(), state.live, len(self.known), state)
            heapq.heappush(self.queue, entry)

    def _after(self, state: _State, task: int) -> tuple[int, _State]:
        """The peak of a task, and the state after it."""
        self.runs_left -= 1
        tasks = self.tasks
        peak, live = tasks.run(state.done, state.live, task)
        done = state.done | 1 << task
        ready = state.ready & ~(1 << task)
        for other in tasks.after[task]:
            if not tasks.before[other] & ~done:
                ready |= 1 << other
        return peak, _State(done, live, ready, (state.trace, task))

    def _with_free_tasks(self, state: _State) -> _State:
        """The state after all tasks that lose nothing by running now."""
        changed = True
        while changed:
            changed = False
            for task in members(state.ready):
                if (after := self._free(state, task)) is not None:
                    state, changed = after, True
        return state

    def _free(self, state: _State, task: int) -> _State | None:
        """The state after a chain of tasks that gives back what it takes, if there is one."""
        now = state
        while True:
            peak, after = self._after(now, task)
            if peak > self.level:
                return None
            if after.live <= state.live:
                return after
            new = after.ready & ~now.ready
            if not new or new & (new - 1):
                return None
            now, task = after, new.bit_length() - 1


def _order(trace: Trace) -> tuple[int, ...]:
    """The tasks in their order."""
    order: list[int] = []
    while trace is not None:
        trace, task = trace
        order.append(task)
    return tuple(reversed(order))
