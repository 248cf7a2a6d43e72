"""Compilation of a graph: its programs are read, or planned and generated.

``memory.planning`` and ``runtime.native.compilation`` are imported where something has to be
compiled: they and what they import are half of the modules of a process that loads a model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantglow.codegen.llvm.cache import CarriedObjects
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.external import External
from quantglow.ir.ops.work import reference_seconds
from quantglow.memory.plans import FAST, SCHEDULES, PlanFigures, Planning
from quantglow.ort.fallback import Driver, FallbackNode, OnnxRuntimeBackend, segment_entries
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.program_store import ProgramStore
from quantglow.runtime.native.sequences import BatchedExecutable
from quantglow.runtime.programs.answers import AnswerLog
from quantglow.runtime.programs.program_keys import key_of_graph
from quantglow.runtime.programs.segments import SegmentedExecutable, compile_segments
from quantglow.support import debug
from quantglow.support.arguments import brief, choice, instance, integer
from quantglow.support.classes import Concise
from quantglow.support.errors import FileFormatError, OptionError
from quantglow.support.processes.quota import within_quota
from quantglow.support.processes.system import processors
from quantglow.support.processes.threads import submit_task
from quantglow.transforms.partition import Backend, Executable, Segment, branches_apart, partition

if TYPE_CHECKING:
    from quantglow.memory.plans import PlannedProgram
    from quantglow.runtime.native.compilation import Check


BACKENDS = ("llvm", "reference")
"""``reference`` executes the same program in NumPy: slow, for tests and for inspection."""

MAX_THREADS = 1024


@dataclass(frozen=True, repr=False)
class Build(Concise):
    """A compiled graph.

    ``seconds`` is the time of each stage of the compiler, ``plans`` are those of the programs that
    quantglow's own backends compiled or read, ``segments`` the parts of a partitioned graph,
    ``suffix`` the operators of the model that run behind the graph and are not in it, ``later``
    gives those that are known once what is behind the graph is compiled, too.  ``is_part``: more of
    the model is behind the graph.
    """

    executable: Executable
    plans: tuple[Planning, ...]
    target: str
    num_threads: int
    seconds: dict[str, float] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    suffix: tuple[FallbackNode, ...] = ()
    later: Callable[[], tuple[FallbackNode, ...]] = tuple
    is_part: bool = False

    @property
    def programs(self) -> tuple[PlannedProgram, ...]:
        """The programs of quantglow's own backends."""
        return tuple(plan.planned for plan in self.plans)

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """All operators that quantglow's own code generators do not run."""
        foreign = (s for s in self.segments if not isinstance(s.backend, ProgramBackend))
        return (
            *(node for segment in foreign for node in segment_entries(segment)),
            *self.suffix,
            *self.later(),
        )


@dataclass(frozen=True)
class Compiler:
    """Compiler from a graph to a build; ``target`` is None for the reference backend.

    ``backends`` are asked for each node before quantglow's own; then come ``drivers`` of nodes that
    importing gave to onnxruntime, and that last.
    ``schedule`` is one of ``SCHEDULES``.  ``carried``: code that a file brought, which is found as
    long as this is in use.  ``answers``: calls that onnxruntime answers while a program is
    compiled; None where they wait.  ``is_checked``: the model comes from a file, so plans of its
    programs are checked at each shape.
    """

    target: Target | None
    num_threads: int = 1
    backends: tuple[Backend, ...] = ()
    schedule: str = FAST
    carried: CarriedObjects | None = None
    answers: AnswerLog | None = None
    is_checked: bool = False
    drivers: tuple[Driver, ...] = ()

    @staticmethod
    def of(
        target: str = "native",
        num_threads: int | None = None,
        backend: str = "llvm",
        backends: Sequence[Backend] = (),
        schedule: str = FAST,
        *,
        answers: AnswerLog | None = None,
    ) -> Compiler:
        """The compiler for a target.

        ``num_threads=None`` takes one thread for each physical core that this process may use.
        Raises ``OptionError``, and ``BackendError`` for a target that does not run here.
        """
        choice("backend", backend, BACKENDS)
        choice("schedule", schedule, SCHEDULES)
        threads, others = thread_count(num_threads), code_generators(backends)
        if backend == "reference":
            return Compiler(None, 1, others, schedule, answers=answers)
        resolved = resolve(instance("target", target, str, "the name of a target"))
        return Compiler(resolved, threads, others, schedule, answers=answers)

    @property
    def name(self) -> str:
        return "reference" if self.target is None else self.target.name

    def compile(self, graph: Graph, *, skip_branches: bool = True) -> Build:
        """Machine code for a graph.

        The graph is cut into segments if other backends run a part of it, or around large branches
        that need not run (``skip_branches``).
        """
        graph.check_names()
        backend = self.backend
        arguments = (self.name, self.num_threads)
        branches = branches_apart(graph) if skip_branches else []
        if self._is_ours(graph) and not branches:
            executable: Executable = backend.compile(graph, *arguments)
            return Build(executable, tuple(backend.plans), *arguments, backend.seconds)
        segments = partition(graph, self.executors(backend), branches)
        executable = SegmentedExecutable(graph, compile_segments(graph, segments, *arguments))
        return Build(executable, tuple(backend.plans), *arguments, backend.seconds, segments)

    @property
    def backend(self) -> ProgramBackend:
        """quantglow's own code generators."""
        return ProgramBackend(self.target, self.schedule, self.is_checked)

    def executors(self, backend: Backend) -> tuple[Backend, ...]:
        """The backends in the order in which they are asked, with ``backend`` as quantglow's own
        code generators."""
        return (*self.backends, backend, *self.drivers, OnnxRuntimeBackend())

    def in_onnx(self, node: Node) -> Node:
        """A node as an exported model has it.  Raises ``ModelError``."""
        if isinstance(node, External):
            for driver in filter(lambda driver: driver.supports(node), self.drivers):
                return driver.in_onnx(node)
        return node

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
            from quantglow.runtime.native.compilation import load_kernels

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
    """quantglow's own code generators; records their plans and the time of each stage."""

    target: Target | None
    schedule: str = FAST
    is_checked: bool = False
    plans: list[Planning] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "reference" if self.target is None else "llvm"

    def supports(self, node: Node) -> bool:
        """Whether it is not an operator that importing gave to onnxruntime."""
        return not isinstance(node, External)

    @property
    def transfer(self) -> tuple[float, float]:
        """Nothing: its values are in the memory of the host."""
        return 0.0, 0.0

    def time(self, node: Node) -> float:
        """Seconds of a node in the cost model of the reference processor."""
        return reference_seconds(node)

    def compile(self, segment: Graph, target: str, num_threads: int) -> Executable:
        """Lower, plan and generate code for the target of this backend, or read what an earlier
        process made of an equal graph."""
        if self.target is None:
            from quantglow.interpreter.program import ReferenceExecutable

            planned, _ = self.planned(segment, num_threads)
            self._record(planned)
            return ReferenceExecutable(planned.program, planned.plan)
        key = key_of_graph(segment, self.target, num_threads, self.schedule)
        stored = self.read(key, lambda: segment, num_threads)
        if stored is not None and not _reads(stored, segment):
            debug.log(1, f"program cache: {key} has other inputs")
            stored = None
        executable, pieces = stored or self._compile_segment(key, segment, num_threads)
        if pieces == 1:
            return executable
        inputs = tuple(node.type for node in segment.inputs)
        outputs = tuple(node.type for _, node in segment.outputs)
        return BatchedExecutable(executable, pieces, inputs, outputs)

    def read(
        self, key: str | None, segment: Callable[[], Graph], num_threads: int
    ) -> tuple[LlvmExecutable, int] | None:
        """The stored program of a graph, and the number of pieces of the batch; None where there is
        none."""
        assert self.target is not None
        spent: dict[str, float] = {}
        with debug.time_stage("read program", spent):
            entry = key and ProgramStore().program(key, self.target, num_threads, _facts_from)
        if not entry:
            return None
        loaded, (figures, pieces) = entry
        try:
            executable = LlvmExecutable.of(loaded)
        except FileFormatError as error:
            debug.log(1, f"program cache: {key} cannot be used: {error}")
            return None
        self.seconds.update(spent)
        self.plans.append(Planning(figures, lambda: self.planned(segment(), num_threads)[0]))
        return executable, pieces

    def _compile_segment(
        self, key: str | None, segment: Graph, num_threads: int
    ) -> tuple[LlvmExecutable, int]:
        """A new program, and the number of pieces of the batch."""
        from quantglow.runtime.native.compilation import compile_program

        assert self.target is not None
        planned, pieces = self.planned(segment, num_threads)
        self._record(planned)
        with debug.time_stage("generate code", self.seconds):
            executable = compile_program(
                planned.program,
                planned.plan,
                self.target,
                num_threads,
                is_checked=self.is_checked,
            )
        if key is not None:
            facts = {"pieces": pieces, "figures": astuple(planned.figures)}
            ProgramStore().keep(key, executable.loaded, facts)
        return executable, pieces

    def _record(self, planned: PlannedProgram) -> None:
        self.plans.append(Planning(planned.figures, lambda: planned))

    def planned(self, segment: Graph, num_threads: int) -> tuple[PlannedProgram, int]:
        """The program of a graph or of a piece of its batch, and the number of pieces."""
        from quantglow.memory.planning import batch_piece, plan_program

        planned = plan_program(segment, self.target, self.seconds, schedule=self.schedule)
        if self.target is None:
            return planned, 1
        part, pieces = batch_piece(segment, planned, num_threads)
        if pieces > 1:
            planned = plan_program(part, self.target, self.seconds, schedule=self.schedule)
        return planned, pieces


def _reads(stored: tuple[LlvmExecutable, int], segment: Graph) -> bool:
    """Whether a stored program reads the inputs of a graph; one for pieces is asked where these are
    put together."""
    executable, pieces = stored
    kinds = {node.name: (node.type.fixed_shape, node.type.dtype.numpy) for node in segment.inputs}
    return pieces > 1 or executable.inputs == kinds


def _facts_from(data: Any) -> tuple[PlanFigures, int]:
    """The figures of a stored program, and the number of pieces of the batch.  Raises ``KeyError``,
    ``TypeError`` or ``ValueError``."""
    pieces = int(data["pieces"])
    if pieces < 1:
        raise ValueError(f"a batch of {pieces} pieces")
    return PlanFigures(*map(int, data["figures"])), pieces


def thread_count(num_threads: int | None) -> int:
    """``num_threads`` if it is valid, the cores that are available for None.  Raises
    ``OptionError``."""
    if num_threads is None:
        return available_cores()
    return integer("num_threads", num_threads, 1, MAX_THREADS)


def available_cores() -> int:
    """Number of cores that this process may use at once: those on which it may run, of which
    hyper-threads count once, and no more than its control groups leave it the time of."""
    return within_quota(len({_core_name(cpu) for cpu in processors()}))


def _core_name(cpu: int) -> str:
    """A text that is equal for the hyper-threads of one core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return topology.read_text()
    except OSError:
        return str(cpu)


@contextmanager
def kernels_ahead(load: Callable[..., object]) -> Iterator[Callable[..., object]]:
    """Function that starts ``load``, which compiles kernels, and returns at once; ``load`` gets its
    arguments and, as the last one, a check to be called before each kernel.

    Weights are not part of a kernel, so it is called as soon as the operators and their types are
    known.  LLVM then has the second core while the first one rounds weights.  Errors are ignored
    here, because compiling the whole graph raises them again.  An error in the block, or Ctrl-C,
    drops the kernels that are not being compiled yet.
    """
    if available_cores() < 2:
        yield _nothing
        return
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise CancelledError

    pool = ThreadPoolExecutor(1, "quantglow-kernels")
    try:
        yield lambda *arguments: submit_task(pool, load, *arguments, check)
        pool.shutdown()
    except BaseException:
        ended.set()
        raise
    finally:
        pool.shutdown()


def _nothing(*arguments: object) -> None:
    """A single core gains nothing."""
