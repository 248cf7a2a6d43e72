"""From a graph to something that runs: lower, order, generate, share, plan, emit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from quantglow import debug
from quantglow.backends.llvm.executable import compile_program
from quantglow.backends.llvm.target import Target, resolve
from quantglow.backends.reference import ReferenceExecutable
from quantglow.errors import OptionError
from quantglow.graph.graph import Graph
from quantglow.instr.generate import generate
from quantglow.instr.program import Program
from quantglow.instr.verify import verify_program
from quantglow.lowering import lower
from quantglow.memory.planner import MemoryPlan, plan_memory
from quantglow.memory.schedule import schedule
from quantglow.memory.share import share_in_place
from quantglow.options import choice
from quantglow.types import Array

BACKENDS = ("llvm", "reference")
"""``reference`` executes the same program in NumPy: slow, for tests and for looking inside."""

MAX_THREADS = 1024


class Executable(Protocol):
    """What every backend makes of a planned program.  ``run`` may be called from any thread."""

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds are known to match its inputs."""


@dataclass(frozen=True)
class PlannedProgram:
    """A program with its memory plan, and the primitives it came from."""

    lowered: Graph
    program: Program
    plan: MemoryPlan


@dataclass(frozen=True)
class Build:
    """A compiled graph.  ``seconds`` holds the time of each stage of the compiler."""

    executable: Executable
    program: Program
    plan: MemoryPlan
    target: str
    num_threads: int
    seconds: dict[str, float] = field(default_factory=dict)


def plan_program(
    graph: Graph, *, unsigned: bool = True, seconds: dict[str, float] | None = None
) -> PlannedProgram:
    """The planned program of a graph; ``unsigned`` stores int8 activations as uint8."""
    with debug.timed("lower", seconds):
        lowered = lower(graph, unsigned=unsigned)
    debug.dump_ir("lower", lowered)
    with debug.timed("plan", seconds):
        program = share_in_place(generate(lowered, schedule(lowered)))
        if debug.verifying():
            verify_program(program)
        plan = plan_memory(program)
    debug.dump_ir("program", program)
    debug.log(1, str(plan))
    return PlannedProgram(lowered, program, plan)


@dataclass(frozen=True)
class Machine:
    """What to compile for; ``target`` is None for the reference backend."""

    target: Target | None
    num_threads: int = 1

    @staticmethod
    def of(
        target: str = "native", num_threads: int | None = None, backend: str = "llvm"
    ) -> Machine:
        """Raises ``BackendError`` for an unknown target and ``OptionError``.

        ``num_threads=None`` takes one thread for each physical core this process may use.
        """
        choice("backend", backend, BACKENDS)
        threads = thread_count(num_threads)
        return Machine(None) if backend == "reference" else Machine(resolve(target), threads)

    @property
    def name(self) -> str:
        return "reference" if self.target is None else self.target.name

    def compile(self, graph: Graph) -> Build:
        """Machine code for a graph."""
        seconds: dict[str, float] = {}
        if self.target is None:
            planned = plan_program(graph, seconds=seconds)
            executable: Executable = ReferenceExecutable(planned.program, planned.plan)
        else:
            unsigned = self.target.unsigned_activations
            planned = plan_program(graph, unsigned=unsigned, seconds=seconds)
            with debug.timed("generate code", seconds):
                parts = (planned.program, planned.plan, self.target, self.num_threads)
                executable = compile_program(*parts)
        return Build(
            executable, planned.program, planned.plan, self.name, self.num_threads, seconds
        )


def compile_graph(
    graph: Graph, target: str = "native", num_threads: int | None = None, backend: str = "llvm"
) -> Build:
    """``Machine.of(target, num_threads, backend).compile(graph)``"""
    return Machine.of(target, num_threads, backend).compile(graph)


def thread_count(num_threads: int | None) -> int:
    """``num_threads`` if it is sensible, the physical cores for None.  Raises ``OptionError``."""
    if num_threads is None:
        return physical_cores()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int):
        raise OptionError(f"num_threads must be an integer or None, got {num_threads!r}")
    if not 1 <= num_threads <= MAX_THREADS:
        raise OptionError(f"num_threads must be from 1 to {MAX_THREADS}, got {num_threads}")
    return num_threads


def physical_cores() -> int:
    """Cores this process may run on; hyper-threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_core_of(cpu) for cpu in os.sched_getaffinity(0)})


def _core_of(cpu: int) -> str:
    """A text equal for the hyper-threads of one core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return topology.read_text()
    except OSError:
        return str(cpu)
