"""The tuner: the choices of a network's convolutions and products, measured within a time.

Rounds ask the searcher of each task for choices, those first on which the network spends most time;
the best ones are compared with the default once more, in turns.  A choice counts if it is faster by
``FASTER`` in the median, and in three quarters of the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.graph.graph import Graph
from quantglow.support.arguments import choice as one_of
from quantglow.support.classes import cached_property
from quantglow.support.errors import BackendError
from quantglow.support.processes.interrupts import Deadline
from quantglow.tuning.g_bfs import GBFS
from quantglow.tuning.measuring import Job, Measurement, Measurer, Measuring, Work, plan_tasks
from quantglow.tuning.n_a2c import NA2C
from quantglow.tuning.optuna_search import OptunaSearch
from quantglow.tuning.random_search import Annealing, RandomSearch
from quantglow.tuning.records import Record, this_host
from quantglow.tuning.searchers import Maker, ModelOrder, Searcher, Space
from quantglow.tuning.trials import Task
from quantglow.tuning.xgboost_search import XGBoostSearch

SEARCHERS: dict[str, Maker] = {
    "model": ModelOrder,
    "random": RandomSearch,
    "annealing": Annealing,
    "g-bfs": GBFS,
    "n-a2c": NA2C,
    "xgboost": XGBoostSearch,
    "optuna": OptunaSearch,
}
"""``model`` takes the order of the cost model."""
DEFAULT_SEARCHER = "model"

FASTER = 0.98
"""Ratio to the default's time below which a choice is used."""
ASKED = 8
"""Choices of a task in one round."""
TASKS_TOGETHER = 24
"""Tasks of one round."""
FINALISTS = 3
SEARCH_SAMPLES, FINAL_SAMPLES = 5, 25
"""Rounds in which a choice is timed."""
SEARCH_SHARE = 0.8
"""Share of the time for the search; the rest is for the comparison."""
MOST_TRIED = 400
"""Choices of a task after which its search ends."""

Say = Callable[[str], object]
"""Is told in one line how far the work is."""


def quiet(line: str) -> None:
    """Say nothing."""


@dataclass
class Tuned:
    """The search of one task."""

    task: Task
    searcher: Searcher
    places: dict[KernelChoice, int]
    hinted: list[KernelChoice] = field(default_factory=list)
    measured: dict[KernelChoice, Measurement] = field(default_factory=dict)
    is_done: bool = False

    @staticmethod
    def of(task: Task, make: Maker, hinted: Sequence[KernelChoice], seed: int) -> Tuned:
        """A search that has not begun."""
        places = {choice: number for number, choice in enumerate(task.choices)}
        modeled = [task.cycles(choice) for choice in task.choices]
        searcher = make(Space.of(task.choices, modeled), seed)
        return Tuned(task, searcher, places, [c for c in hinted if c in places])

    def asked(self) -> list[KernelChoice]:
        """The next choices to measure: first those that other machines found."""
        if self.hinted:
            hinted, self.hinted = self.hinted, []
            return [self.task.default, *(c for c in hinted if c != self.task.default)]
        states = self.searcher.ask(ASKED)
        self.is_done = not states or len(self.measured) >= MOST_TRIED
        return [self.task.choices[state] for state in states]

    def told(self, measured: Measurement) -> None:
        """Note a measurement."""
        choice = measured.job.choice
        self.measured[choice] = measured
        self.searcher.tell(self.places[choice], measured.ratio)

    @property
    def share(self) -> float:
        """Seconds that the network spends in the default of this task."""
        least = [min(m.default_seconds) for m in self.measured.values() if m.default_seconds]
        return self.task.uses * min(least, default=math.inf)

    @property
    def finalists(self) -> list[KernelChoice]:
        """The fastest choices, the default left out."""
        timed = [
            m for m in self.measured.values() if m.seconds and m.job.choice != self.task.default
        ]
        timed.sort(key=lambda m: m.ratio)
        return [m.job.choice for m in timed[:FINALISTS] if m.ratio < 1.0]

    def record(self, finals: Sequence[Measurement], host: str) -> Record:
        """The record of the best finalist; of none if no one is faster than the default."""
        better = [m for m in finals if m.seconds and is_faster(m)]
        best = min(better, key=lambda m: m.ratio, default=None)
        tried = len(self.measured)
        if best is None:
            return Record(self.task.key, host, None, tried=tried)
        times = (best.seconds, best.default_seconds)
        return Record(self.task.key, host, best.job.choice, *times, tried=tried)


def is_faster(measured: Measurement) -> bool:
    """Whether a choice is faster than the default in the median, and in most rounds."""
    ratios = np.divide(measured.seconds, measured.default_seconds)
    return float(np.median(ratios)) < FASTER and float(np.quantile(ratios, 0.75)) < 1.0


@dataclass(frozen=True)
class Tuner:
    """Measures the tasks of the programs of graphs, by default on this machine.

    ``measure`` makes an object that measures, given the number of samples and the deadline;
    ``host``: the machine that does, for the records.
    """

    graphs: Sequence[Graph]
    target: Target
    threads: int
    deadline: Deadline
    searcher: str = DEFAULT_SEARCHER
    say: Say = quiet
    measure: Callable[[int, Deadline], Measuring] | None = None
    host: str = field(default_factory=this_host)

    @cached_property
    def planned(self) -> tuple[list[Task], int]:
        """The tasks of the programs, and the bytes of their weights."""
        graphs, _ = self.work.parse()  # with guards of their own: those of compiled code are closed
        return plan_tasks(graphs, self.target, self.threads)

    @cached_property
    def work(self) -> Work:
        """The graphs for another process."""
        return Work.of(self.graphs, self.target, self.threads)

    @cached_property
    def measuring(self) -> Callable[[int, Deadline], Measuring]:
        """``measure``, by default in children of this process."""
        return self.measure or partial(Measurer, self.work)

    def run(
        self, earlier: Mapping[str, Record], hinted: Mapping[str, list[KernelChoice]]
    ) -> list[Record]:
        """New records, of the tasks that have none from ``earlier``.

        Raises ``BackendError`` if there are such tasks and nothing of them could be measured.
        """
        make = SEARCHERS[one_of("searcher", self.searcher, tuple(SEARCHERS))]
        tasks, nbytes = self.planned
        searches = [
            Tuned.of(task, make, hinted.get(task.key, ()), number)
            for number, task in enumerate(task for task in tasks if task.key not in earlier)
        ]
        self._search(searches, nbytes)
        measured = [search for search in searches if search.measured]
        if searches and not any(m.seconds for s in measured for m in s.measured.values()):
            reasons = {m.failure for s in measured for m in s.measured.values()}
            why = "; ".join(sorted(reasons)) or "no time was left"
            raise BackendError(
                f"none of {len(searches)} kernels could be measured: {why}. Remedy: a larger "
                "max_minutes, or compile without tune."
            )
        return self._records(measured, nbytes)

    def _search(self, searches: Sequence[Tuned], nbytes: int) -> None:
        """Rounds of measurements until all searches or the time are over."""
        by_task = {search.task.key: search for search in searches}
        deadline = self.deadline.part(SEARCH_SHARE)
        measurer = self.measuring(SEARCH_SAMPLES, deadline)
        while not deadline.is_over:
            going = [search for search in searches if not search.is_done]
            going.sort(key=lambda search: len(search.measured) / search.share)
            jobs = [
                Job(search.task.key, choice, nbytes)
                for search in going[:TASKS_TOGETHER]
                for choice in search.asked()
            ]
            if not jobs and all(search.is_done for search in searches):
                return
            for measured in measurer.run(jobs):
                by_task[measured.job.task].told(measured)
            tried = sum(len(search.measured) for search in searches)
            self.say(f"{tried} choices measured for {len(searches)} kernels")

    def _records(self, searches: Sequence[Tuned], nbytes: int) -> list[Record]:
        """The records of finals between the best choices and the default; none for tasks whose
        finals no time was left for."""
        jobs = [Job(s.task.key, choice, nbytes) for s in searches for choice in s.finalists]
        measurer = self.measuring(FINAL_SAMPLES, self.deadline)
        finals: dict[str, list[Measurement]] = {}
        for measured in measurer.run(jobs):
            finals.setdefault(measured.job.task, []).append(measured)
        self.say(f"{len(jobs)} of them compared once more")
        return [
            search.record(finals.get(search.task.key, ()), self.host)
            for search in searches
            if not search.finalists or search.task.key in finals
        ]
