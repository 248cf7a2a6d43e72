"""Measurement of choices in child processes.

A child compiles the kernels of some choices, compares the bytes of their results with those of the
default, and times all in turns with it.  Where a child gives no result, the halves of its choices
are measured apart, down to the one that is at fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from quantglow.codegen.llvm.isa.costs import Choices, KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.machine import core_to_json, parse_core
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import parse_graph, print_without_scales, text_constants, text_scales
from quantglow.ir.symbolic.size import find_guards, symbols
from quantglow.ir.symbolic.text import guard_text, read_guards
from quantglow.memory.planning import plan_program
from quantglow.runtime.programs.build import ProgramBackend
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.isolation import IsolationError, call_isolated
from quantglow.tuning.trials import KernelTrial, LoadedKernel, Task, find_tasks, time_kernels

CHILD = "quantglow.tuning.measuring:measure_here"
START_SECONDS = 60.0
"""Time limit of a child beside that of its choices: it plans the program anew."""
GRACE_SECONDS = 5.0
"""Time after the deadline in which a child ends what it has begun."""
CHOICE_SECONDS = 5.0
"""Time limit for each choice."""
TOGETHER = 8
"""Choices timed in turns; each has its weights in memory several times."""
MOST_IN_CHILD = 256
"""Maximum number of choices for one child."""

TIMED, UNKNOWN, WRONG, LATE = range(4)
"""States of a choice: timed; no choice of its task; with other results than the default; not
begun before the deadline."""
FAILURES = {
    UNKNOWN: "the task has no such choice",
    WRONG: "its results are not those of the default: a defect of quantglow, please report it",
}

Progress = Callable[[int], object]
"""Is told how many choices are done."""


@dataclass(frozen=True)
class Job:
    """One choice of a task to measure; ``weights_nbytes``: see ``KernelTrial``."""

    task: str
    choice: KernelChoice
    weights_nbytes: int


@dataclass(frozen=True)
class Measurement:
    """The seconds of a choice, and of the default in the same rounds: none if it failed, for the
    reason ``failure``."""

    job: Job
    seconds: tuple[float, ...] = ()
    default_seconds: tuple[float, ...] = ()
    failure: str = ""

    @property
    def ratio(self) -> float:
        """The least time over that of the default: within these rounds others can only have been
        disturbed, and what slows the machine for longer slows both.  Infinite if it failed."""
        if not self.seconds:
            return float("inf")
        return min(self.seconds) / min(self.default_seconds)


class Measuring(Protocol):
    """Measures choices of the tasks of the programs of graphs."""

    def run(self, jobs: Sequence[Job]) -> list[Measurement]:
        """The measurements of jobs, in order; those for which no time was left are missing."""


@dataclass(frozen=True)
class Work:
    """The graphs whose tasks are measured, for another process: their texts, the names of their
    constants, and all arrays; with the name of a target, the costs of its core, and threads.

    ``hints``: the sizes of free dimensions, which all graphs share, and ``guards`` their guards.
    """

    texts: Sequence[str]
    constants: Sequence[str]
    arrays: Sequence[Array]
    target: str
    core: Mapping[str, Any]
    threads: int
    hints: Mapping[str, int] = field(default_factory=dict)
    guards: Sequence[str] = ()

    @staticmethod
    def of(graphs: Sequence[Graph], target: Target, threads: int = 1) -> Work:
        """The work of graphs; the target is found by its name whatever its costs."""
        constants: dict[str, Array] = {}
        scales: dict[ArrayMark, Array] = {}
        for graph in graphs:
            constants |= text_constants(graph)
            scales |= text_scales(graph)
        guards = find_guards(size for g in graphs for node in g.nodes for size in node.type.shape)
        is_native = target == replace(resolve("native"), core=target.core)
        return Work(
            [print_without_scales(graph) for graph in graphs],
            list(constants),
            [*constants.values(), *scales.values()],
            "native" if is_native else target.name,
            core_to_json(target.core),
            threads,
            dict(guards.hints) if guards else {},
            list(map(guard_text, guards.recorded)) if guards else [],
        )

    def parse(self) -> tuple[list[Graph], Target]:
        """The graphs, with guards of their own, and the target."""
        sizes, guards = symbols(self.hints)
        for guard in read_guards(self.guards, self.hints):
            guards.record(guard)
        scales = {ArrayMark.of(array): array for array in self.arrays[len(self.constants) :]}
        constants = dict(zip(self.constants, self.arrays, strict=False))
        target = replace(resolve(self.target), core=parse_core(self.core))
        return [parse_graph(text, constants, scales, sizes) for text in self.texts], target


@dataclass(frozen=True)
class Measurer:
    """Measures choices in children of this process."""

    work: Work
    samples: int = 5
    deadline: Deadline = NEVER

    def run(self, jobs: Sequence[Job], progress: Progress = lambda done: None) -> list[Measurement]:
        """The measurements of jobs, in order; those for which no time was left are missing."""
        outcomes: list[Measurement] = []
        for first in range(0, len(jobs), MOST_IN_CHILD):
            if self.deadline.is_over:
                break
            outcomes += self._by_halves(list(jobs[first : first + MOST_IN_CHILD]))
            progress(len(outcomes))
        return outcomes

    def _by_halves(self, jobs: list[Job]) -> list[Measurement]:
        try:
            return self._by_child(jobs)
        except IsolationError as error:
            if self.deadline.is_over:
                return []
            if len(jobs) == 1:
                return [Measurement(jobs[0], failure=str(error))]
            middle = len(jobs) // 2
            return [*self._by_halves(jobs[:middle]), *self._by_halves(jobs[middle:])]

    def _by_child(self, jobs: list[Job]) -> list[Measurement]:
        """All that were begun before the deadline.  Raises ``IsolationError``."""
        left = self.deadline.minutes_left
        seconds = math.inf if left is None else 60 * left
        facts = {
            **{name: value for name, value in vars(self.work).items() if name != "arrays"},
            "samples": self.samples,
            "jobs": [[job.task, job.choice.to_json(), job.weights_nbytes] for job in jobs],
            "until": None if left is None else time.time() + seconds,
        }
        limit = min(START_SECONDS + CHOICE_SECONDS * len(jobs), seconds + GRACE_SECONDS)
        times, defaults, states = call_isolated(CHILD, self.work.arrays, facts, seconds=limit)
        rows = zip(jobs, times.tolist(), defaults.tolist(), states.tolist(), strict=True)
        return [
            Measurement(job, tuple(choice), tuple(default))
            if state == TIMED
            else Measurement(job, failure=FAILURES[state])
            for job, choice, default, state in rows
            if state != LATE
        ]


def plan_tasks(graphs: Sequence[Graph], target: Target, threads: int = 1) -> tuple[list[Task], int]:
    """The tasks of the programs of graphs, as they would be compiled, and the bytes of their
    constants."""
    plain = replace(target, choices=Choices())
    tasks: dict[str, Task] = {}
    nbytes = 0
    for graph in graphs:
        # A batch of a free size is not cut into pieces.
        planned = (
            plan_program(graph, plain)
            if graph.has_free_sizes
            else ProgramBackend(plain).planned(graph, threads)[0]
        )
        nbytes += planned.figures.constant_nbytes
        for task in find_tasks(planned.program, plain):
            earlier = tasks.get(task.key)
            tasks[task.key] = replace(task, uses=task.uses + (earlier.uses if earlier else 0))
    return list(tasks.values()), nbytes


def measure_here(
    arrays: Sequence[Array],
    samples: int,
    jobs: Sequence[tuple[str, Any, int]],
    until: float | None = None,
    **work: Any,
) -> list[Array]:
    """In the child: seconds [jobs, samples], those of the default, and states [jobs].

    After the time ``until``, in seconds of the clock, nothing is begun but the first choices.
    ``work``: the other fields of ``Work``.
    """
    graphs, target = Work(arrays=arrays, **work).parse()
    tasks = {task.key: task for task in plan_tasks(graphs, target, work["threads"])[0]}
    seconds, defaults = np.zeros((2, len(jobs), samples))
    states = np.full(len(jobs), UNKNOWN, np.int8)
    numbered = sorted(enumerate(jobs), key=lambda pair: (pair[1][0], pair[1][2], pair[0]))
    for (key, nbytes), group in groupby(numbered, key=lambda pair: (pair[1][0], pair[1][2])):
        if key not in tasks:
            continue
        trial, chosen = KernelTrial(tasks[key], nbytes), list(group)
        for first in range(0, len(chosen), TOGETHER):
            if until is not None and TIMED in states and time.time() > until:
                states[[number for number, _ in chosen[first:]]] = LATE
                break
            kernels: dict[int, LoadedKernel] = {}
            for number, (_, choice, _) in chosen[first : first + TOGETHER]:
                if (kernel := trial.loaded(KernelChoice.of(choice))) is not None:
                    right = kernel.results() == trial.expected
                    states[number] = TIMED if right else WRONG
                    if right:
                        kernels[number] = kernel
            default = trial.loaded(tasks[key].default)
            assert default is not None
            times = time_kernels([default, *kernels.values()], samples)
            defaults[list(kernels)] = times[0]
            seconds[list(kernels)] = times[1:]
    return [seconds, defaults, states]
