"""Tasks of a program: what scheduling orders, their bytes, and lives of temporaries.

A task is a node with the instructions that compute it; nodes without instructions (views) are not
tasks.  A loop is one task; copies to outputs are the last one.  A buffer is alive from the first
task that touches it to the last one, and a result takes over the buffer of an operand that dies in
its step, as ``share_in_place`` decides.  So the bytes that are alive depend only on the *set* of
tasks that are done, not on their order, and the peak of an order is the lower bound of the plan of
its program.

Sets of tasks are integers, task ``t`` being bit ``1 << t``.

``lives`` gives the lives of temporaries in the program of an order without making that program: a
search judges thousands of orders by their plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from quantglow.ir.graph.graph import Graph, topological_order
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Loop, Pad
from quantglow.ir.program.lifetimes import siblings
from quantglow.ir.program.program import Alloc, Buffer, BufferKind, Compute, Dealloc, Instruction
from quantglow.memory.planner import Interval, align_nbytes
from quantglow.support.classes import Concise, cached_property
from quantglow.transforms.program.generate import Generated
from quantglow.transforms.program.sharing import replaceable, share_carried


@dataclass(frozen=True)
class TaskStep:
    """An instruction: the temporaries that it touches, in the order of its views.

    out       the buffer of its result, where that may take over another one
    replaces  the buffers of operands that it may take over, if they die here
    """

    touched: tuple[Buffer, ...]
    out: Buffer | None = None
    replaces: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class Moment:
    """Bytes that come and go at a step of a task; sets are of other tasks.

    opens     bytes of the buffers that begin here unless one of a set is done
    takes     for each operand that may be replaced: the set that must be done, the set that must
              not, and the bytes that are saved
    closes    bytes of the buffers that end here if all of a set is done
    """

    opens: tuple[tuple[int, int], ...]
    takes: tuple[tuple[int, int, int], ...]
    closes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Tasks(Concise):
    """Tasks in one valid order.

    nodes    the node of each task but the last
    steps    the instructions of each task
    before   for each task the set of tasks that it needs
    """

    graph: Graph
    nodes: tuple[Node, ...]
    steps: tuple[tuple[TaskStep, ...], ...]
    before: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def all(self) -> int:
        """The set of all tasks."""
        return (1 << len(self)) - 1

    @cached_property
    def nbytes(self) -> Mapping[Buffer, int]:
        """Bytes of each buffer in the arena."""
        touched = [b for steps in self.steps for step in steps for b in step.touched]
        return {buffer: align_nbytes(buffer) for buffer in touched}

    @cached_property
    def users(self) -> Mapping[Buffer, int]:
        """For each buffer the set of tasks that touch it."""
        users: dict[Buffer, int] = defaultdict(int)
        for task, steps in enumerate(self.steps):
            for step in steps:
                for buffer in step.touched:
                    users[buffer] |= 1 << task
        return users

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """For each task those that need it."""
        successors: list[list[int]] = [[] for _ in self.before]
        for task, needed in enumerate(self.before):
            for other in members(needed):
                successors[other].append(task)
        return tuple(map(tuple, successors))

    @cached_property
    def moments(self) -> tuple[tuple[Moment, ...], ...]:
        """The steps of each task, ready for ``run``."""
        return tuple(_moments(self, task) for task in range(len(self)))

    def run(self, done: int, live: int, task: int) -> tuple[int, int]:
        """Peak while a task runs, and bytes alive after it, if ``done`` leaves ``live`` bytes."""
        peak = 0
        for moment in self.moments[task]:
            for users, nbytes in moment.opens:
                if not users & done:
                    live += nbytes
            now = live
            for needed, excluded, nbytes in moment.takes:
                if needed & done == needed and not excluded & done:
                    now -= nbytes
                    break
            if now > peak:
                peak = now
            for users, nbytes in moment.closes:
                if users & done == users:
                    live -= nbytes
        return peak, live

    def peak(self, order: Sequence[int]) -> int:
        """Peak of the bytes that are alive, the lower bound of the plan of this order."""
        done = live = peak = 0
        for task in order:
            now, live = self.run(done, live, task)
            peak = max(peak, now)
            done |= 1 << task
        return peak

    def nodes_in(self, order: Sequence[int]) -> tuple[Node, ...]:
        """All nodes, those of tasks in an order of these, others before their first readers."""
        nodes = [self.nodes[task] for task in order if task < len(self.nodes)]
        return topological_order([*self.graph.inputs, *nodes, *self.graph.nodes])


def build_tasks(graph: Graph, generated: Generated) -> Tasks:
    """The tasks of the program of a graph."""
    shared = share_carried(generated.program).instructions
    steps = [step for step in shared if not isinstance(step, Alloc | Dealloc)]
    nodes, groups = list[Node](), list[tuple[TaskStep, ...]]()
    position = 0
    for node, count in generated.counts.items():
        if count:
            nodes.append(node)
            groups.append(tuple(map(_step, steps[position : position + count])))
        position += count
    groups.append(tuple(map(_step, steps[position:])))
    before = _before(graph, generated.counts, nodes)
    return Tasks(graph, tuple(nodes), tuple(groups), (*before, (1 << len(nodes)) - 1))


def members(tasks: int) -> list[int]:
    """The tasks of a set."""
    groups = []
    while tasks:
        low = tasks & -tasks
        groups.append(low.bit_length() - 1)
        tasks ^= low
    return groups


def _step(step: Instruction) -> TaskStep:
    views = [view.buffer for view in step.views if view.buffer.kind is BufferKind.TEMP]
    touched = tuple(dict.fromkeys(views))
    replaces = tuple(replaceable(step)) if isinstance(step, Compute) else ()
    return TaskStep(touched, step.output.buffer if isinstance(step, Compute) else None, replaces)


def _before(graph: Graph, counts: Mapping[Node, int], nodes: Sequence[Node]) -> list[int]:
    """For each task those that compute its operands, be it through views.

    The first of several Pads of a value, or results of a loop, computes what all of them need.
    """
    numbers = {node: task for task, node in enumerate(nodes)}
    producers: dict[Node, int] = {}
    masks: list[int] = []
    leaders: dict[object, Node] = {}
    for node in counts:
        needed = 0
        for operand in node.operands:
            needed |= producers[operand]
        leader = leaders.setdefault(_group(graph, node), node)
        if leader is not node:
            needed |= producers[leader]
        if node in numbers:
            masks.append(needed)
            needed = 1 << numbers[node]
        producers[node] = needed
    return masks


def _group(graph: Graph, node: Node) -> object:
    """Equal for nodes that one of them computes for all."""
    if isinstance(node, Pad):
        return Pad, node.x, repr(node.fill)
    if isinstance(node, Loop):
        return siblings(node, graph.nodes)[0]
    return node


def _moments(tasks: Tasks, task: int) -> tuple[Moment, ...]:
    """The moments of a task."""
    steps, bit, nbytes = tasks.steps[task], 1 << task, tasks.nbytes
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        for buffer in step.touched:
            first.setdefault(buffer, at)
            last[buffer] = at
    others = {buffer: tasks.users[buffer] & ~bit for buffer in first}
    moments = []
    for at, step in enumerate(steps):
        out = step.out
        opens = [(others[b], nbytes[b]) for b in step.touched if first[b] == at]
        closes = [(others[b], nbytes[b]) for b in step.touched if last[b] == at]
        takes = [
            (others[b], others[out], nbytes[out])
            for b in step.replaces
            if out is not None and first[out] == at and last[b] == at
        ]
        moments.append(Moment(tuple(opens), tuple(takes), tuple(closes)))
    return tuple(moments)


def lives(tasks: Tasks, order: Sequence[int]) -> list[Interval]:
    """The life of each temporary, in the order of ``dealloc`` instructions, numbered as these."""
    steps = [step for task in order for step in tasks.steps[task]]
    owners = _owners(steps)
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        for buffer in step.touched:
            owner = owners.get(buffer, buffer)
            first.setdefault(owner, at)
            last[owner] = at
    begins, ends = _number(len(steps), first, last)
    return [Interval(buffer, begins[buffer], end) for buffer, end in ends.items()]


def _owners(steps: Sequence[TaskStep]) -> dict[Buffer, Buffer]:
    """The buffers in which results lie that take over another one."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        for buffer in step.touched:
            first.setdefault(buffer, at)
            last[buffer] = at
    owners: dict[Buffer, Buffer] = {}
    for at, step in enumerate(steps):
        if step.out is None or first.get(step.out) != at:
            continue
        dying = next((buffer for buffer in step.replaces if last[buffer] == at), None)
        if dying is not None:
            owners[step.out] = owners.get(dying, dying)
    return owners


def _number(
    count: int, first: dict[Buffer, int], last: dict[Buffer, int]
) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """Numbers of the ``alloc`` and ``dealloc`` instructions of buffers, those in their order."""
    opened = {at: list(group) for at, group in groupby(first, first.__getitem__)}
    closed: dict[int, list[Buffer]] = {}
    for buffer, at in last.items():
        closed.setdefault(at, []).append(buffer)
    begins: dict[Buffer, int] = {}
    ends: dict[Buffer, int] = {}
    number = 0
    for at in range(count):
        for buffer in opened.get(at, ()):
            begins[buffer] = number
            number += 1
        number += 1
        for buffer in closed.get(at, ()):
            ends[buffer] = number
            number += 1
    return begins, ends
