"""Programs that a model keeps: the last used, those of frequent shapes, stored ones.

The last used programs stay, and the first one always does.  Shapes that come often get programs of
their own, compiled in the background.

A graph at other shapes is imported from the model again, which takes longer than to read a program.
So the key of each case's program is kept under the contents of the model's file and the case.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature
from quantglow.runtime.native.program_store import ProgramStore
from quantglow.runtime.programs.build import Build, Compiler, ProgramBackend, available_cores
from quantglow.runtime.programs.program_keys import key_of_case, key_of_graph
from quantglow.runtime.shapes.specializations import AtCase, Served
from quantglow.support.classes import cached_property
from quantglow.support.processes import threads
from quantglow.support.processes.threads import renew_after_fork

OFTEN = 500
"""After so many calls a case gets a program of its own."""

Check = Callable[[], None]
"""It is called between kernels, and raises ``CancelledError`` when the process ends."""


@dataclass(eq=False)
class KeptPrograms:
    """Programs by their cases, the last used one last; used under the lock of the owner.

    ``first`` is the first program, and always stays; ``opened``: the only case whose program may be
    that, for a model whose file has the graph of a case.
    """

    most_values: int
    most_programs: int
    most_nbytes: int
    opened: Case | None = None
    first: Served | None = None
    programs: dict[Case, Served] = field(default_factory=dict)
    _counts: Counter[Case] = field(default_factory=Counter)

    def used(self, case: Case) -> tuple[Case, Served | None]:
        """The case that has a program for this one, and that, if it is there."""
        if case not in self.programs and self._counts[case.whatever_values] >= self.most_values:
            case = case.whatever_values
        served = self.programs.get(case)
        if served is not None:
            self.programs[case] = self.programs.pop(case)  # the last one
        return case, served

    def count(self, case: Case) -> None:
        """Count a program that was made for the values of a case."""
        if case.values:
            self._counts[case.whatever_values] += 1

    def add(self, case: Case, served: Served) -> list[Case]:
        """Keep a program; the cases whose programs are dropped for it."""
        if self.first is None and self.opened in (None, case):
            self.first = served
        self.programs.pop(case, None)
        self.programs[case] = served  # the last one
        total = sum(map(_own_nbytes, self.programs.values()))
        dropped = []
        for old in list(self.programs):
            if len(self.programs) <= self.most_programs and total <= self.most_nbytes:
                break
            if old != case and self.programs[old] is not self.first:
                total -= _own_nbytes(self.programs.pop(old))
                dropped.append(old)
        return dropped


def _own_nbytes(served: Served) -> int:
    """Size in bytes of a program beside what it shares with others; the programs of the parts of a
    model are kept and counted apart."""
    plans = () if served.is_general or served.build.is_part else served.build.plans
    return sum(plan.figures.peak_nbytes for plan in plans)


@dataclass(eq=False)
class OftenUsed:
    """Calls of each case, counted under the lock of the owner.

    ``make`` compiles the program of a case; it is called in a thread of its own, one at a time, and
    once for a case, until that is forgotten.
    """

    make: Callable[[Case, Check], None]
    _calls: Counter[Case] = field(default_factory=Counter)
    _tried: set[Case] = field(default_factory=set)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def called(self, case: Case) -> None:
        """Count a call; a case that comes often is compiled while others run, if there is a core
        for it.
        """
        if case in self._tried:
            return
        self._calls[case] += 1
        if self._calls[case] >= OFTEN and self._is_free:
            del self._calls[case]
            self._tried.add(case)
            if self._has_cores:
                self._start(case)

    def start(self, case: Case, done: Callable[[], object]) -> bool:
        """Whether a case, of which calls ran elsewhere, is compiled now, after which the thread
        calls ``done``; it is not where another one is, or where it was tried."""
        if not self.may_start(case) or not self._is_free:
            return False
        self._tried.add(case)
        self._calls.pop(case, None)
        self._start(case, done)
        return True

    def may_start(self, case: Case) -> bool:
        """Whether a case can be compiled: there is a core for it, and it was not tried."""
        return case not in self._tried and self._has_cores

    @cached_property
    def _has_cores(self) -> bool:
        """Whether there is a core beside that of a caller; asked once, as files tell."""
        return available_cores() > 1

    @property
    def _is_free(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def leave(self, case: Case) -> None:
        """Compile nothing for a case: its owner does."""
        self._tried.add(case)

    def forget(self, case: Case) -> None:
        """Forget the calls of a case, and that it was tried."""
        self._calls.pop(case, None)
        self._tried.discard(case)

    def forget_threads(self) -> None:
        """Forget, in a forked child, what the thread of the parent was doing."""
        self._thread = None
        self._tried.clear()

    def _start(self, case: Case, done: Callable[[], object] = lambda: None) -> None:
        def work() -> None:
            try:
                self.make(case, threads.check_not_ending)
            finally:
                done()

        self._thread = threads.start("quantglow-often-used", work)


@dataclass(frozen=True)
class StoredCases:
    """The cases of a model; ``identity`` is a hash of its file, empty if it has none."""

    identity: str
    signature: Signature
    graph_at: Callable[[Case], Graph]
    compiler: Compiler

    def program(self, case: Case) -> AtCase | None:
        """The stored program of a case; None where there is none."""
        key, compiler = self._key(case), self.compiler
        name = None if key is None else ProgramStore().facts(key, _program_name)
        backend = ProgramBackend(compiler.target, compiler.schedule)
        entry = name and backend.read(name, lambda: self.graph_at(case), compiler.num_threads)
        if not entry or entry[1] > 1:
            return None
        if entry[0].inputs != self.signature.kinds_at(case.shape_map):
            return None
        arguments = (compiler.name, compiler.num_threads)
        build = Build(entry[0], tuple(backend.plans), *arguments, backend.seconds)
        return AtCase(self.signature, self.graph_at, build, case)

    def keep(self, case: Case, graph: Graph) -> None:
        """Keep the key of a case whose graph was compiled, unless it is several programs."""
        key, target = self._key(case), self.compiler.target
        if key is None or target is None or not self.compiler.is_one_program(graph):
            return
        name = key_of_graph(graph, target, self.compiler.num_threads, self.compiler.schedule)
        ProgramStore().keep_facts(key, name)

    def _key(self, case: Case) -> str | None:
        compiler = self.compiler
        if not self.identity or compiler.target is None or compiler.backends:
            return None
        threads, schedule = compiler.num_threads, compiler.schedule
        return key_of_case(self.identity, case, compiler.target, threads, schedule)


def _program_name(data: Any) -> str:
    """A key as it was kept.  Raises ``ValueError``."""
    if not isinstance(data, str) or not data.removeprefix("program_").isalnum():
        raise ValueError(f"{data!r} is no key of a program")
    return data
