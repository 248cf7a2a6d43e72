"""Schedules: the order of execution, depth first or searched, with its memory plan.

``"fast"`` takes the best of three depth-first orders, which visit operands in different sequence;
the one with the smallest simulated peak wins.  Glow's child-memory order is one of them.  Sizes of
nodes stand for buffers here: ``tasks`` knows which of these share memory.

``"memory"`` searches for the order with the smallest planned arena: by an exact search
(``best_order``), then by priorities (``genetic_search``) where the plan is larger than the bound
of all orders.  Its work is bounded by counts, so the result is the same on every machine.

``best_order`` has the smallest peak, by a best-first search over sets of done tasks.

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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quantglow.ir.graph.graph import Graph, topological_order
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.program.program import Program
from quantglow.ir.symbolic.size import likely
from quantglow.memory.genetic_search import search_order, search_plan
from quantglow.memory.planner import MemoryPlan, lifetimes, plan_memory
from quantglow.memory.plans import FAST
from quantglow.memory.tasks import Tasks, build_tasks, members
from quantglow.support.classes import Concise
from quantglow.transforms.program.generate import Generated
from quantglow.transforms.program.sharing import optimize_program

MOST_TASKS = 2000
"""Maximum number of instructions that a search orders: bounds of longer programs take seconds."""

Maker = Callable[[Sequence[Node]], Generated]
"""Function that generates the program of an order."""


@dataclass(frozen=True, repr=False)
class Arranged(Concise):
    """A program with its plan."""

    program: Program
    plan: MemoryPlan


def arrange_program(graph: Graph, make: Maker, way: str = FAST) -> Arranged:
    """The program of a lowered graph with its plan, by one of ``SCHEDULES``."""
    generated = make(schedule(graph))
    program = optimize_program(generated.program)
    quick = Arranged(program, plan_memory(program))
    if way == FAST:
        return quick
    tasks = build_tasks(graph, generated)
    return quick if len(tasks) > MOST_TASKS else _smallest(tasks, make, quick)


def _smallest(tasks: Tasks, make: Maker, best: Arranged) -> Arranged:
    """The arrangement with the smallest arena that was found; ``best`` is that of the tasks as
    they are."""
    original = tuple(range(len(tasks)))
    smallest = best_order(tasks, tasks.peak(original))
    orders = [original] if smallest.order is None else [smallest.order, original]
    for order in orders:
        best = _better(tasks, order, make, best, smallest.bound)
    if best.plan.peak_nbytes > smallest.bound:
        order = search_order(tasks, orders, smallest.bound)
        best = _better(tasks, order, make, best, smallest.bound)
    return replace(best, plan=replace(best.plan, every_order_nbytes=smallest.bound))


def _better(
    tasks: Tasks, order: Sequence[int], make: Maker, best: Arranged, bound: int
) -> Arranged:
    """The arrangement of an order if its arena is smaller; ``bound`` is that of all orders."""
    if best.plan.peak_nbytes == bound or tasks.peak(order) >= best.plan.peak_nbytes:
        return best
    program = optimize_program(make(tasks.nodes_in(order)).program)
    plan = search_plan(lifetimes(program), plan_memory(program))
    return Arranged(program, plan) if plan.peak_nbytes < best.plan.peak_nbytes else best


def schedule(graph: Graph) -> tuple[Node, ...]:
    """Nodes of the graph in execution order; operands come before users."""
    depth = _subtree_peaks(graph)
    orders: list[Callable[[Node], Sequence[Node]]] = [
        lambda node: node.operands,
        lambda node: node.operands[::-1],
        lambda node: sorted(node.operands, key=lambda n: likely(n.type.nbytes) - depth[n]),
    ]
    roots = [*graph.inputs, *(node for _, node in graph.outputs)]
    candidates = [topological_order(roots, order) for order in orders]
    return min(candidates, key=lambda nodes: peak_nbytes(graph, nodes))


def peak_nbytes(graph: Graph, order: Sequence[Node]) -> int:
    """Peak of the live activations, in bytes, if nodes run in ``order``."""
    waiting = Counter(graph.use_counts)
    live = peak = 0
    for node in order:
        live += _weight(node)
        peak = max(peak, live)
        for operand in node.operands:
            waiting[operand] -= 1
            if not waiting[operand]:
                live -= _weight(operand)
    return peak


def _weight(node: Node) -> int:
    return 0 if isinstance(node, Input | Constant) else likely(node.type.nbytes)


def _subtree_peaks(graph: Graph) -> dict[Node, int]:
    """Peak memory of computing each node, as if the graph were a tree."""
    peaks: dict[Node, int] = {}
    for node in graph.nodes:
        held = need = 0
        for operand in sorted(node.operands, key=lambda n: likely(n.type.nbytes) - peaks[n]):
            need = max(need, held + peaks[operand])
            held += _weight(operand)
        peaks[node] = max(need, held + _weight(node))
    return peaks


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

    level        peaks up to here count as equal.  If no order is below it at the start, then no
                 order has a smaller peak
    queue        states by peak, those with most tasks done first
    least_peaks  the smallest peak with which each set of tasks was met
    """

    tasks: Tasks
    runs_left: int
    level: int
    queue: list[tuple[int, int, int, int, _State]] = field(default_factory=list)
    least_peaks: dict[int, int] = field(default_factory=dict)
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
        if peak < self.least_peaks.get(state.done, peak + 1):
            self.least_peaks[state.done] = peak
            entry = (peak, -state.done.bit_count(), state.live, len(self.least_peaks), state)
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
