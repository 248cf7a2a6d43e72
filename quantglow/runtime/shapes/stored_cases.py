"""Programs of cases that an earlier process compiled, found without making their graphs.

A graph at other shapes is imported from the model again, which takes longer than to read a program.
So the key of each case's program is kept under the contents of the model's file and the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quantglow.backends.llvm.runtime.program_store import ProgramStore
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Signature
from quantglow.runtime.build import Build, Compiler, ProgramBackend
from quantglow.runtime.program_keys import key_of_case, key_of_graph
from quantglow.runtime.shapes.specialisations import AtCase


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
        name = None if key is None else ProgramStore().facts(key, program_name)
        own = ProgramBackend(compiler.target, compiler.schedule)
        found = name and own.read(name, lambda: self.graph_at(case), compiler.num_threads)
        if not found or found[1] > 1:
            return None
        if found[0].inputs != self.signature.kinds_at(case.shape_map):
            return None
        arguments = (compiler.name, compiler.num_threads)
        build = Build(found[0], tuple(own.plans), *arguments, own.seconds)
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


def program_name(data: Any) -> str:
    """A key as it was kept.  Raises ``ValueError``."""
    if not isinstance(data, str) or not data.removeprefix("program_").isalnum():
        raise ValueError(f"{data!r} is no key of a program")
    return data
