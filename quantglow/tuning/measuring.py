"""Measurement of choices, in child processes and in cluster workers on one quiet core.

A child compiles the kernels of some choices, compares the bytes of their results with those of the
default, and times all in turns with it.  Where a child gives no result, the halves of its choices
are measured apart, down to the one that is at fault: one that crashes or hangs costs only itself.

Workers of a cluster also state facts of their machine (``machine``).  A lease (``leased``) is a
lock of the machine, so that other processes that tune there wait; the system takes it back when the
process that has it ends.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantglow.codegen.llvm.isa.costs import Choice, Choices
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.machine import core_of, core_to_json
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.text import constants_of, parse_graph, print_without_scales, scales_of
from quantglow.ir.program.program import Program
from quantglow.runtime.programs.build import ProgramBackend
from quantglow.support.arrays import Array
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.isolation import IsolationError, called
from quantglow.support.processes.system import LOOK_SECONDS, idle_ticks, processors
from quantglow.tuning.records import this_host
from quantglow.tuning.trials import LoadedKernel, Trial, tasks_of, timed
from quantglow.version import __version__

CHILD = "quantglow.tuning.measuring:measured_here"
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

Progress = Callable[[int], object]
"""Is told how many choices are done."""

FAILURES = {
    UNKNOWN: "the task has no such choice",
    WRONG: "its results are not those of the default: a defect of quantglow, please report it",
}

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name that all processes of a running machine read, in containers, too."""

_graphs: dict[int, tuple[Work, Graph]] = {}
"""The last graph, by its work: Dask gives the same object to every task of a worker."""


def untold(done: int) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Job:
    """One choice of a task to measure; ``weights_nbytes``: see ``Trial``."""

    task: str
    choice: Choice
    weights_nbytes: int


@dataclass(frozen=True)
class Measured:
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
    """Measures choices of the tasks of a graph's program."""

    def run(self, jobs: Sequence[Job], progress: Progress = untold) -> list[Measured]:
        """The measurements of jobs, in order; those for which no time was left are missing."""


@dataclass(frozen=True)
class Measurer:
    """Measures choices of the tasks of a graph's program."""

    graph: Graph
    target: Target
    threads: int = 1
    samples: int = 5
    deadline: Deadline = NEVER

    def run(self, jobs: Sequence[Job], progress: Progress = untold) -> list[Measured]:
        """The measurements of jobs, in order; those for which no time was left are missing."""
        found: list[Measured] = []
        for first in range(0, len(jobs), MOST_IN_CHILD):
            if self.deadline.is_over:
                break
            found += self._outcomes(list(jobs[first : first + MOST_IN_CHILD]))
            progress(len(found))
        return found

    def _outcomes(self, jobs: list[Job]) -> list[Measured]:
        try:
            return self._by_child(jobs)
        except IsolationError as error:
            if self.deadline.is_over:
                return []
            if len(jobs) == 1:
                return [Measured(jobs[0], failure=str(error))]
            middle = len(jobs) // 2
            return [*self._outcomes(jobs[:middle]), *self._outcomes(jobs[middle:])]

    def _by_child(self, jobs: list[Job]) -> list[Measured]:
        """All that were begun before the deadline.  Raises ``IsolationError``."""
        left = self.deadline.minutes_left
        seconds = math.inf if left is None else 60 * left
        text, constants, arrays = printed(self.graph)
        facts = {
            "text": text,
            "constants": constants,
            "target": name_of(self.target),
            "core": core_to_json(self.target.core),
            "threads": self.threads,
            "samples": self.samples,
            "jobs": [[job.task, job.choice.to_json(), job.weights_nbytes] for job in jobs],
            "until": None if left is None else time.time() + seconds,
        }
        limit = min(START_SECONDS + CHOICE_SECONDS * len(jobs), seconds + GRACE_SECONDS)
        times, defaults, states = called(CHILD, arrays, facts, seconds=limit)
        return [
            Measured(job, tuple(own), tuple(default))
            if state == TIMED
            else Measured(job, failure=FAILURES[int(state)])
            for job, own, default, state in zip(
                jobs, times.tolist(), defaults.tolist(), states, strict=True
            )
            if state != LATE
        ]


def name_of(target: Target) -> str:
    """The name by which another process of this machine finds a target, whatever its costs."""
    is_native = target == replace(resolve("native"), core=target.core)
    return "native" if is_native else target.name


def printed(graph: Graph) -> tuple[str, list[str], list[Array]]:
    """A graph for another process: its text, the names of its constants, and all arrays."""
    constants, scales = constants_of(graph), scales_of(graph)
    return print_without_scales(graph), list(constants), [*constants.values(), *scales.values()]


def parsed(text: str, constants: Sequence[str], arrays: Sequence[Array]) -> Graph:
    """The graph from the result of ``printed``."""
    scales = {ArrayMark.of(array): array for array in arrays[len(constants) :]}
    return parse_graph(text, dict(zip(constants, arrays, strict=False)), scales)


def planned_for(graph: Graph, target: Target, threads: int) -> tuple[Program, int]:
    """The program of a graph, as it would be compiled, and the bytes of its constants."""
    plain = replace(target, choices=Choices())
    planned, _ = ProgramBackend(plain).planned(graph, threads)
    return planned.program, planned.figures.constant_nbytes


def measured_here(
    arrays: Sequence[Array],
    text: str,
    constants: Sequence[str],
    target: str,
    core: Mapping[str, Any],
    threads: int,
    samples: int,
    jobs: Sequence[tuple[str, Any, int]],
    until: float | None = None,
) -> list[Array]:
    """In the child: seconds [jobs, samples], those of the default, and states [jobs].

    After the time ``until``, in seconds of the clock, nothing is begun but the first choices.
    """
    graph = parsed(text, constants, arrays)
    found = replace(resolve(target), core=core_of(core))
    tasks = {task.key: task for task in tasks_of(planned_for(graph, found, threads)[0], found)}
    seconds, defaults = np.zeros((2, len(jobs), samples))
    states = np.full(len(jobs), UNKNOWN, np.int8)
    numbered = sorted(enumerate(jobs), key=lambda pair: (pair[1][0], pair[1][2], pair[0]))
    for (key, nbytes), group in groupby(numbered, key=lambda pair: (pair[1][0], pair[1][2])):
        if key not in tasks:
            continue
        trial, chosen = Trial(tasks[key], nbytes), list(group)
        for first in range(0, len(chosen), TOGETHER):
            if until is not None and TIMED in states and time.time() > until:
                states[[number for number, _ in chosen[first:]]] = LATE
                break
            kernels: dict[int, LoadedKernel] = {}
            for number, (_, choice, _) in chosen[first : first + TOGETHER]:
                if (kernel := trial.loaded(Choice.of(choice))) is not None:
                    right = kernel.results() == trial.expected
                    states[number] = TIMED if right else WRONG
                    if right:
                        kernels[number] = kernel
            default = trial.loaded(tasks[key].default)
            assert default is not None
            times = timed([default, *kernels.values()], samples)
            defaults[list(kernels)] = times[0]
            seconds[list(kernels)] = times[1:]
    return [seconds, defaults, states]


@dataclass(frozen=True)
class Machine:
    """Facts of a worker's machine.

    ``place``: equal for workers of one machine; ``host``: its name in records, equal for machines
    of one kind; ``level``: name of the target's instructions there, or why it does not run;
    ``core``: the costs of its core.
    """

    place: str
    host: str
    level: str
    core: Mapping[str, Any]
    version: str = __version__


@dataclass(frozen=True)
class Work:
    """A graph as ``printed`` gives it, for a target and a number of threads."""

    text: str
    constants: tuple[str, ...]
    arrays: tuple[Array, ...]
    target: str
    threads: int


def machine(target: str) -> Machine:
    """The facts of this machine, for a target by its name.  Raises ``BackendError`` for one that
    does not run here."""
    found = resolve(target)
    return Machine(place(), this_host(), found.name, core_to_json(found.core))


def place() -> str:
    """A name of this running machine."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return platform.node()


def measured(work: Work, core: Mapping[str, Any], jobs: Sequence[Job], samples: int) -> list[Any]:
    """The measurements of jobs, in order, on one core of this machine."""
    target = replace(resolve(work.target), core=core_of(core))
    with leased():
        return list[Measured](Measurer(graph_of(work), target, work.threads, samples).run(jobs))


def graph_of(work: Work) -> Graph:
    """The graph of a work, read once."""
    known = _graphs.get(id(work))
    if known is None or known[0] is not work:
        _graphs.clear()
        known = _graphs[id(work)] = work, parsed(work.text, work.constants, work.arrays)
    return known[1]


@contextmanager
def leased() -> Iterator[None]:
    """Inside, no other process tunes on this machine, and children run on one quiet core."""
    with locked(Path(tempfile.gettempdir()) / f"quantglow-lease-{user()}"), pinned():
        yield


def user() -> int:
    """The number of the user; 0 where the system has none."""
    return os.getuid() if hasattr(os, "getuid") else 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside, this process has the lock of a file; none where the system has no such locks."""
    try:
        import fcntl  # Windows has no such module

        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def pinned() -> Iterator[None]:
    """Inside, this thread and the children that it starts run on the processor that is most idle,
    where the system lets them."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {quiet_processor()})
    except (AttributeError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def quiet_processor() -> int:
    """The processor that is idle for most of ``LOOK_SECONDS``.  Raises ``OSError``."""
    first = idle_ticks()
    time.sleep(LOOK_SECONDS)
    idle = [after - before for before, after in zip(first, idle_ticks(), strict=True)]
    return max(zip(idle, processors(), strict=True))[1]
