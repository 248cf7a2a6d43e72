"""General programs of graphs that are cut into segments.

Each segment of quantglow's own is a program whose sizes are expressions of the same symbols, and
each one of onnxruntime a session that takes all shapes.  A new shape binds the numbers of all
segments; nothing is compiled or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.symbolic.expression import Values
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import to_expression
from quantglow.ir.types import TensorType
from quantglow.memory.planner import OrderedPlan
from quantglow.memory.plans import PlannedProgram
from quantglow.ort.fallback import FallbackNode, OnnxRuntimeBackend, segment_entries
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.loaded import LoadedProgram
from quantglow.runtime.programs.build import Compiler, ProgramBackend
from quantglow.runtime.programs.program_keys import key_of_general
from quantglow.runtime.programs.segments import CompiledSegment, SegmentedExecutable, last_reads
from quantglow.runtime.programs.symbolic_graphs import SymbolicGraph
from quantglow.runtime.shapes.general import (
    GeneralProgram,
    Opened,
    keep_program,
    load_program,
    plan_program_for,
    values_at,
)
from quantglow.runtime.shapes.general_plans import Ends
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import WrongResultError
from quantglow.transforms.partition import Executable, Segment, branches_apart, partition

Planned = tuple[PlannedProgram, OrderedPlan]


@dataclass(frozen=True, eq=False, repr=False)
class SegmentedProgram(Concise):
    """A program for all shapes in several segments; ``plans``: None for those of onnxruntime."""

    source: SymbolicGraph
    graph: Graph
    guards: Guards
    compiler: Compiler
    segments: tuple[Segment, ...]
    plans: tuple[Planned | None, ...]

    @cached_property
    def executable(self) -> tuple[LoadedProgram | Executable, ...]:
        """The machine code and the sessions.  They may add guards."""
        with debug.time_stage("general segments"):
            executables = tuple(map(self._compile, self.segments, self.plans))
        self.guards.is_closed = True
        return executables

    def _compile(self, segment: Segment, plan: Planned | None) -> LoadedProgram | Executable:
        target, threads = self.compiler.target, self.compiler.num_threads
        assert target is not None
        if plan is None:
            return segment.backend.compile(segment.graph, target.name, threads)
        # Only here, as in ``_plan``: a process that finds its programs on disk makes none.
        from quantglow.runtime.native.compilation import compile_free_program

        planned, order = plan
        return compile_free_program(
            planned.program,
            order,
            self.guards,
            target,
            threads,
            is_checked=self.compiler.is_checked,
        )

    def values_at(self, case: Case, more: Values | None = None) -> Values | None:
        """The values of the symbols at a case, and ``more``; None if the plans do not fit it."""
        return values_at(self.source, self.guards, case, more)

    def ends_at(self, values: Values) -> Ends:
        """The types of inputs and outputs."""
        outputs = [node for _, node in self.graph.outputs]
        return _types_at(self.graph.inputs, values), _types_at(outputs, values)

    def code_at(self, values: Values) -> Executable | None:
        """The segments for values at which the plans fit, made now if need be; None where the
        guards of their code do not hold."""
        was_closed, _ = self.guards.is_closed, self.executable
        return self._bound(values) if was_closed or self.guards.hold(values) else None

    def _bound(self, values: Values) -> SegmentedExecutable:
        parts = zip(self.segments, self.executable, self._reads, strict=True)
        return SegmentedExecutable(
            self.graph,
            tuple(
                CompiledSegment(
                    segment,
                    LlvmExecutable.of(code, values) if isinstance(code, LoadedProgram) else code,
                    names,
                    _types_at([node for _, node in segment.graph.outputs], values),
                )
                for segment, code, names in parts
            ),
        )

    @cached_property
    def _reads(self) -> list[tuple[str, ...]]:
        return last_reads(self.graph, self.segments)

    def pieces_at(self, values: Values) -> int:
        """1: a batch goes through all segments at once."""
        return 1

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """The operators of onnxruntime's segments."""
        parts = zip(self.segments, self.plans, strict=True)
        return tuple(n for segment, plan in parts if plan is None for n in segment_entries(segment))


def _types_at(nodes: Iterable[Node], values: Values) -> tuple[TensorType, ...]:
    """The types of values at the sizes of a shape."""
    return tuple(
        node.type.with_shape(tuple(to_expression(size).at(values) for size in node.type.shape))
        for node in nodes
    )


def program_for_all(
    source: SymbolicGraph,
    hints: Mapping[str, int],
    caution: int,
    opened: Opened,
    compiler: Compiler,
) -> GeneralProgram | SegmentedProgram:
    """The general program of the graph for all shapes that ``opened`` gives for some hints, in
    segments where it needs them: an earlier process's, or a new one.

    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    assert compiler.target is not None
    key = key_of_general(source, hints, caution, compiler.target, compiler.schedule)
    if (stored := load_program(source, opened, compiler, key)) is not None:
        return stored
    graph, guards = opened()
    if compiler.is_one_program(graph):
        return keep_program(plan_program_for(source, graph, guards, compiler), key)
    backend = ProgramBackend(compiler.target, compiler.schedule)
    segments = partition(graph, (backend, OnnxRuntimeBackend()), branches_apart(graph))
    with debug.time_stage("general plan"):
        plans = tuple(_plan(s, compiler) if s.backend is backend else None for s in segments)
    return SegmentedProgram(source, graph, guards, compiler, segments, plans)


def _plan(segment: Segment, compiler: Compiler) -> Planned:
    from quantglow.memory.planning import plan_program

    planned = plan_program(segment.graph, compiler.target, schedule=compiler.schedule)
    return planned, OrderedPlan.of(planned.program, planned.plan)


@dataclass(frozen=True, eq=False, repr=False)
class Retried(Concise):
    """Segments at one shape; where onnxruntime gives other shapes than were expected, a program of
    its own, which ``make`` compiles once."""

    executable: Executable
    make: Callable[[], Executable]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        if "_substitute" not in vars(self):
            try:
                return self.executable.run(feeds)
            except WrongResultError as error:
                debug.log(1, f"no program for all shapes serves this one: {error}")
        return self._substitute.run(feeds)

    @cached_property
    def _substitute(self) -> Executable:
        return self.make()
