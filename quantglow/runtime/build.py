"""Compilation of a graph: lower, order, generate, share, plan, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from quantglow import debug
from quantglow.arguments import brief, choice, instance, integer
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.runtime.batch_split import BatchedExecutable
from quantglow.backends.llvm.runtime.executable import Check, compile_program, load_kernels
from quantglow.backends.llvm.targets import resolve
from quantglow.backends.reference import ReferenceExecutable
from quantglow.concise import Concise
from quantglow.errors import OptionError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.instr.donation import Donation
from quantglow.instr.generate import generate_by_node
from quantglow.instr.program import Program
from quantglow.instr.verify import verify_program
from quantglow.lowering import lower
from quantglow.memory.arrange import FAST, SCHEDULES, arranged
from quantglow.memory.planner import MemoryPlan
from quantglow.ops.external import External
from quantglow.runtime.batches import piece_of
from quantglow.runtime.branches import branches_apart
from quantglow.runtime.fallback import FallbackNode, OnnxRuntimeBackend, nodes_of
from quantglow.runtime.partition import Segment, partition
from quantglow.runtime.protocol import Backend, Executable
from quantglow.runtime.segments import SegmentedExecutable, compiled_segments
from quantglow.system import processors

BACKENDS = ("llvm", "reference")
"""``reference`` executes the same program in NumPy: slow, for tests and for inspection."""

MAX_THREADS = 1024


@dataclass(frozen=True, repr=False)
class PlannedProgram(Concise):
    """A program with its memory plan, and the primitives that it was made from."""

    lowered: Graph
    program: Program
    plan: MemoryPlan


@dataclass(frozen=True, repr=False)
class Build(Concise):
    """A compiled graph.

    ``seconds`` is the time of each stage of the compiler, ``programs`` are the ones that
    quantglow's own backends compiled, ``segments`` the parts of a partitioned graph, ``rest`` the
    operators of the model that run behind the graph and are not in it.
    """

    executable: Executable
    programs: tuple[PlannedProgram, ...]
    target: str
    num_threads: int
    seconds: dict[str, float] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    rest: tuple[FallbackNode, ...] = ()

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """All operators that quantglow's own code generators do not run."""
        foreign = (s for s in self.segments if not isinstance(s.backend, ProgramBackend))
        return (*(node for segment in foreign for node in nodes_of(segment)), *self.rest)


def plan_program(
    graph: Graph,
    target: Target | None,
    seconds: dict[str, float] | None = None,
    donations: Sequence[Donation] = (),
    schedule: str = FAST,
) -> PlannedProgram:
    """The planned program of a graph for a target, or for the reference backend.

    The target decides whether int8 activations are stored as uint8, and the slack after buffers.
    ``schedule``: how the order of execution is found, see ``memory.arrange``.
    """
    unsigned = target is None or target.isa.unsigned_activations
    slack_nbytes = 0 if target is None else target.isa.slack_nbytes
    with debug.timed("lower", seconds):
        lowered = lower(graph, unsigned=unsigned)
    debug.dump_ir("lower", lowered)
    with debug.timed("plan", seconds):
        generated = partial(
            generate_by_node, lowered, slack_nbytes=slack_nbytes, donations=donations
        )
        made = arranged(lowered, generated, schedule)
        if debug.verifying():
            verify_program(made.program)
    debug.dump_ir("program", made.program)
    debug.log(1, str(made.plan))
    return PlannedProgram(lowered, made.program, made.plan)


@dataclass(frozen=True)
class Compiler:
    """Compiler from a graph to a build; ``target`` is None for the reference backend.

    ``backends`` are asked for each node before quantglow's own; onnxruntime comes last.
    ``schedule`` is one of ``SCHEDULES``.
    """

    target: Target | None
    num_threads: int = 1
    backends: tuple[Backend, ...] = ()
    schedule: str = FAST

    @staticmethod
    def of(
        target: str = "native",
        num_threads: int | None = None,
        backend: str = "llvm",
        backends: Sequence[Backend] = (),
        schedule: str = FAST,
    ) -> Compiler:
        """The compiler for a target.

        ``num_threads=None`` takes one thread for each physical core that this process may use.
        Raises ``OptionError``, and ``BackendError`` for a target that does not run here.
        """
        choice("backend", backend, BACKENDS)
        choice("schedule", schedule, SCHEDULES)
        threads, others = thread_count(num_threads), code_generators(backends)
        if backend == "reference":
            return Compiler(None, 1, others, schedule)
        found = resolve(instance("target", target, str, "the name of a target"))
        return Compiler(found, threads, others, schedule)

    @property
    def name(self) -> str:
        return "reference" if self.target is None else self.target.name

    def compile(self, graph: Graph, *, skip_branches: bool = True) -> Build:
        """Machine code for a graph.

        The graph is cut into segments if other backends run a part of it, or around large branches
        that need not run (``skip_branches``).
        """
        graph.check_names()
        own = ProgramBackend(self.target, self.schedule)
        arguments = (self.name, self.num_threads)
        branches = branches_apart(graph) if skip_branches else []
        if self._is_ours(graph) and not branches:
            executable: Executable = own.compile(graph, *arguments)
            return Build(executable, tuple(own.programs), *arguments, own.seconds)
        segments = partition(graph, (*self.backends, own, OnnxRuntimeBackend()), branches)
        executable = SegmentedExecutable(graph, compiled_segments(graph, segments, *arguments))
        return Build(executable, tuple(own.programs), *arguments, own.seconds, segments)

    @property
    def is_own(self) -> bool:
        """Whether there are no code generators of others."""
        return not self.backends

    def is_one_program(self, graph: Graph) -> bool:
        """Whether quantglow's own backend compiles all of a graph as one program."""
        return self._is_ours(graph) and not branches_apart(graph)

    def _is_ours(self, graph: Graph) -> bool:
        return self.is_own and not any(isinstance(node, External) for node in graph.nodes)

    def load_kernels(self, graph: Graph, check: Check = lambda: None) -> None:
        """Compile the kernels that ``compile`` needs for such a graph, whatever its weights.

        A graph that is cut into segments is skipped.  ``check`` is called before each kernel; its
        error ends the work.  The order of execution is not searched: kernels hardly depend on it.
        """
        if self.target is not None and self.is_one_program(graph):
            planned, _ = ProgramBackend(self.target).planned(graph, self.num_threads)
            load_kernels(planned.program, self.target, check)


def code_generators(backends: Any) -> tuple[Backend, ...]:
    """The user's code generators.  Raises ``OptionError`` for an object that is not one."""
    if not isinstance(backends, Sequence) or isinstance(backends, str | bytes):
        raise OptionError(f"backends must be a list of code generators, got {brief(backends)}")
    for backend in backends:
        if isinstance(backend, type) or not isinstance(backend, Backend):
            raise OptionError(
                f"backends must have name, supports and compile, got {brief(backend)}. "
                "Remedy: pass objects, see examples/README.md"
            )
    return tuple(backends)


@dataclass(frozen=True)
class ProgramBackend:
    """quantglow's own code generators; records their programs and the time of each stage."""

    target: Target | None
    schedule: str = FAST
    programs: list[PlannedProgram] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "reference" if self.target is None else "llvm"

    def supports(self, node: Node) -> bool:
        """Whether it is not an operator that importing gave to onnxruntime."""
        return not isinstance(node, External)

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """Lower, plan and generate code for the target of this backend."""
        planned, pieces = self.planned(segment, num_threads)
        self.programs.append(planned)
        if self.target is None:
            return ReferenceExecutable(planned.program, planned.plan)
        with debug.timed("generate code", self.seconds):
            made = compile_program(planned.program, planned.plan, self.target, num_threads)
        if pieces == 1:
            return made
        inputs = tuple(node.type for node in segment.inputs)
        outputs = tuple(node.type for _, node in segment.outputs)
        return BatchedExecutable(made, pieces, inputs, outputs)

    def planned(self, segment: Graph, num_threads: int) -> tuple[PlannedProgram, int]:
        """The program of a graph or of a piece of its batch, and the number of pieces."""
        planned = plan_program(segment, self.target, self.seconds, schedule=self.schedule)
        if self.target is None:
            return planned, 1
        part, pieces = piece_of(segment, planned.program, planned.plan, num_threads)
        if pieces > 1:
            planned = plan_program(part, self.target, self.seconds, schedule=self.schedule)
        return planned, pieces


def thread_count(num_threads: int | None) -> int:
    """``num_threads`` if it is valid, the physical cores for None.  Raises ``OptionError``."""
    if num_threads is None:
        return physical_cores()
    return integer("num_threads", num_threads, 1, MAX_THREADS)


def physical_cores() -> int:
    """Number of cores that this process may run on; hyper-threads of one core count once."""
    return len({_core_of(cpu) for cpu in processors()})


def _core_of(cpu: int) -> str:
    """A text that is equal for the hyper-threads of one core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return topology.read_text()
    except OSError:
        return str(cpu)
