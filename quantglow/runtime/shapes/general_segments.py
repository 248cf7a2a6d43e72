"""General programs of graphs that are cut into segments.

Each segment of quantglow's own is a program whose sizes are expressions of the same symbols, and
each one of onnxruntime a session that takes all shapes.  A new shape binds the numbers of all
segments; nothing is compiled or loaded.

Some sizes are late: a segment's results have them, and segments behind it are bound when it has
run (``late_programs``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, starmap

from quantglow.interpreter.branches import Branch
from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.graph.signature import Shapes
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import LARGEST, SMALLEST, Values
from quantglow.ir.symbolic.guards import Conditions, Guard, Guards
from quantglow.ir.symbolic.size import Dim, Size
from quantglow.ir.types import TensorType
from quantglow.memory.planner import OrderedPlan
from quantglow.memory.plans import PlannedProgram, Planning
from quantglow.ort.fallback import Driver, FallbackNode, segment_entries
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.loaded import LoadedProgram
from quantglow.runtime.programs.build import Compiler, ProgramBackend
from quantglow.runtime.programs.program_keys import key_of_general
from quantglow.runtime.programs.segments import CompiledSegment, SegmentedExecutable, last_reads
from quantglow.runtime.programs.symbolic_graphs import SymbolicGraph, fitting
from quantglow.runtime.shapes.general import (
    GeneralProgram,
    Opened,
    keep_program,
    load_program,
    plan_program_for,
)
from quantglow.runtime.shapes.general_plans import Ends
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import UnsupportedOpError, WrongResultError
from quantglow.support.observing import Observer
from quantglow.transforms.bind_sizes import bind_sizes
from quantglow.transforms.partition import Executable, Segment, branches_apart, partition
from quantglow.transforms.size_sources import (
    SizeSource,
    are_sizes_alike,
    fixing_guards,
    late_sizes,
)

Planned = tuple[PlannedProgram, OrderedPlan]

MOST_BINDINGS = 256
"""Maximum number of sizes of segments whose numbers are kept, those bound last."""


@dataclass(frozen=True, eq=False, repr=False)
class SegmentedProgram(Concise):
    """A program for all shapes in several segments.

    ``plans``: None for segments of drivers, for those without free sizes, and for those that a
    backend compiles at each size.  ``pinned``: the shapes of results of late sizes for which it was
    made; sizes of 0 and 1 are fixed.  ``seconds``: the time of each stage of the compiler.
    """

    source: SymbolicGraph
    graph: Graph
    guards: Guards
    compiler: Compiler
    segments: tuple[Segment, ...]
    plans: tuple[Planned | None, ...]
    pinned: Shapes = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _bindings: dict[tuple[int, ...], CompiledSegment] = field(default_factory=dict)

    @cached_property
    def late(self) -> tuple[tuple[SizeSource, ...], ...]:
        """The sizes that are known when each segment has run."""
        sizes = late_sizes(self.graph).values()
        names = (dict(segment.graph.outputs) for segment in self.segments)
        return tuple(tuple(late for late in sizes if late.node.name in n) for n in names)

    @cached_property
    def beside_late(self) -> frozenset[str]:
        """Names of the results of nodes, one of whose results has a late size."""
        names = {late.node.name for late in chain.from_iterable(self.late)}
        calls: dict[tuple[bytes, tuple[Node, ...]], list[str]] = {}
        for node in self.graph.nodes:
            if isinstance(node, External):
                calls.setdefault((node.model, node.args), []).append(node.name)
        results = (call for call in calls.values() if not names.isdisjoint(call))
        return frozenset(chain.from_iterable(results))

    @cached_property
    def symbols_before(self) -> tuple[frozenset[str], ...]:
        """The symbols that have values before each segment, and behind the last one."""
        sizes = [frozenset(each.symbol for each in late) for late in self.late]
        first = frozenset[str]().union(*(node.symbols for node in self.graph.inputs))
        return tuple(accumulate(sizes, frozenset.union, initial=first))

    @cached_property
    def executable(self) -> tuple[LoadedProgram | Executable | None, ...]:
        """The machine code and the sessions.  They may add guards.

        Raises ``UnsupportedOpError`` where a guard is about a size that nothing gives.
        """
        with debug.time_stage("generate code", self.seconds):
            parts = zip(self.segments, self.plans, self._symbols, strict=True)
            executables = tuple(starmap(self._compile, parts))
        *_, symbols = self.symbols_before
        if open_guards := [g for g in self.guards.recorded if not g.expression.names <= symbols]:
            why = ", ".join(map(str, open_guards))
            raise UnsupportedOpError([f"sizes of results that nothing reads decide: {why}"])
        self.guards.is_closed = True
        return executables

    @cached_property
    def conditions(self) -> tuple[Conditions, ...]:
        """The guards whose symbols have values before each segment, and behind the last one."""
        return tuple(map(self.guards.conditions, self.symbols_before))

    def _compile(
        self, segment: Segment, plan: Planned | None, symbols: Sequence[str]
    ) -> LoadedProgram | Executable | None:
        """The code of a segment; None where it is compiled at each size."""
        target, threads = self.compiler.target, self.compiler.num_threads
        if plan is None and (isinstance(segment.backend, Driver) or not segment.graph.symbols):
            return segment.backend.compile(segment.graph, self.compiler.name, threads)
        if plan is None or target is None:
            return None
        # Only here, as in ``_plan``: a process that finds its programs on disk makes none.
        from quantglow.runtime.native.compilation import compile_free_program

        planned, order = plan
        return compile_free_program(
            planned.program,
            order,
            self.guards,
            target,
            threads,
            symbols=frozenset(symbols),
            is_checked=self.compiler.is_checked,
        )

    def values_at(self, case: Case, more: Values | None = None) -> Values | None:
        """The values of the symbols at a case, and ``more``; None if the plans do not fit it."""
        sizes = fitting(self.source.template, case) if case.values == self.source.values else None
        late = None if sizes is None else self._late_values(dict(case.late))
        if sizes is None or late is None:
            return None
        values = {**sizes, **late, **(more or {})}
        return values if self._hold(values) else None

    def _late_values(self, shapes: Shapes) -> dict[str, int] | None:
        """The values of symbols, given the shapes of results; None where these do not fit."""
        if not all(
            name in shapes and are_sizes_alike(n, shapes[name]) for name, n in self.pinned.items()
        ):
            return None
        values: dict[str, int] = {}
        for late in chain.from_iterable(self.late):
            if late.node.name in shapes:
                values[late.symbol] = shapes[late.node.name][late.axis]
        return values if all(SMALLEST <= n <= LARGEST for n in values.values()) else None

    def _hold(self, values: Values) -> bool:
        """Whether the guards hold that these values decide."""
        names = values.keys()
        if self.guards.is_closed:
            stages = zip(self.conditions, self.symbols_before, strict=True)
            return all(each.hold(values) for each, symbols in stages if symbols <= names)
        guards = (guard for guard in self.guards.recorded if guard.expression.names <= names)
        return all(guard.holds(values) for guard in guards)

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
        segments = (self.bind(position, values) for position in range(len(self.segments)))
        return SegmentedExecutable(self.graph, tuple(segments))

    def bind(self, position: int, values: Values) -> CompiledSegment:
        """A segment at values of the symbols that are known before it."""
        # Not those of its own results, which the next run may decide otherwise.
        values = {name: values[name] for name in self._symbols[position]}
        key = (position, *values.values())
        if (bound := self._bindings.get(key)) is not None:
            return bound
        segment, code = self.segments[position], self.executable[position]
        if code is None:
            graph, compiler = bind_sizes(segment.graph, values), self.compiler
            code = segment.backend.compile(graph, compiler.name, compiler.num_threads)
        bound = CompiledSegment(
            segment,
            LlvmExecutable.of(code, values) if isinstance(code, LoadedProgram) else code,
            self._reads[position],
            _types_at([node for _, node in segment.graph.outputs], values),
        )
        for old in list(self._bindings)[: 1 - MOST_BINDINGS]:
            self._bindings.pop(old, None)
        return self._bindings.setdefault(key, bound)

    @cached_property
    def _symbols(self) -> tuple[tuple[str, ...], ...]:
        """The symbols on which each segment depends, of those that are known before it."""
        stages = zip(self.segments, self.symbols_before, strict=False)
        return tuple(tuple(sorted(segment.graph.symbols & names)) for segment, names in stages)

    @property
    def fixing_guards(self) -> frozenset[Guard]:
        """The guards that leave a single value above 1 to something of late sizes."""
        late = frozenset(each.symbol for each in chain.from_iterable(self.late))
        return fixing_guards(self.guards, late)

    @cached_property
    def is_int8(self) -> bool:
        """Whether any value of it is an integer that stands for a real number."""
        return any(node.type.quant is not None for node in self.graph.nodes)

    def show(
        self, position: int, values: Values, watcher: Observer, feeds: Mapping[str, Array]
    ) -> None:
        """Show an observer a segment that runs; drivers show what they run."""
        segment = self.segments[position]
        if not isinstance(segment.backend, Driver):
            watcher.saw_graph(bind_sizes(segment.graph, values), feeds)

    @cached_property
    def meanings(self) -> dict[str, bytes]:
        """A digest of what each node computes, by name: its text, and those of its operands."""
        texts, inner = list[str](), ""
        for line in self.source.text.splitlines():
            if line[0] in "'\"":
                texts.append(inner + line)
                inner = ""
            elif line.startswith(("body", " ")):  # it stands before the node that runs it
                inner += line
        meanings: dict[str, bytes] = {}
        for node, text in zip(self.graph.nodes, texts, strict=True):
            digest = hashlib.blake2b(text.encode(), digest_size=16)
            for operand in node.operands:
                digest.update(meanings[operand.name])
            meanings[node.name] = digest.digest()
        return meanings

    @cached_property
    def _reads(self) -> list[tuple[str, ...]]:
        return last_reads(self.graph, self.segments)

    def pieces_at(self, values: Values) -> int:
        """1: a batch goes through all segments at once."""
        return 1

    @property
    def plannings(self) -> tuple[Planning, ...]:
        """The plans of quantglow's own segments; those of free sizes at the hints."""
        backends = {id(s.backend): s.backend for s in self.segments}.values()
        fixed = (plan for b in backends if isinstance(b, ProgramBackend) for plan in b.plans)
        free = (_planning(plan[0]) for plan in self.plans if plan is not None)
        return (*fixed, *free)

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """The operators of onnxruntime's segments."""
        foreign = (s for s in self.segments if not isinstance(s.backend, ProgramBackend))
        return tuple(node for segment in foreign for node in segment_entries(segment))


def _planning(planned: PlannedProgram) -> Planning:
    return Planning(planned.figures, lambda: planned)


def _types_at(nodes: Iterable[Node], values: Values) -> tuple[TensorType, ...]:
    """The types of values at the sizes of a shape; those that are not known stay free."""
    return tuple(
        node.type.with_shape(tuple(_size_at(size, values) for size in node.type.shape))
        for node in nodes
    )


def _size_at(size: Dim, values: Values) -> Dim:
    if isinstance(size, Size) and size.symbols <= values.keys():
        return size.expression.at(values)
    return size


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
    return cut_program(source, graph, guards, compiler, branches_apart(graph))


def cut_program(
    source: SymbolicGraph,
    graph: Graph,
    guards: Guards,
    compiler: Compiler,
    branches: Sequence[Branch] = (),
    pinned: Shapes | None = None,
) -> SegmentedProgram:
    """The program of a graph in segments, planned for its hints; see there for ``pinned``."""
    backend = compiler.backend
    segments = partition(graph, compiler.executors(backend), branches)
    seconds = dict[str, float]()
    with debug.time_stage("general plan"):
        plans = tuple(
            _plan(s, compiler, seconds)
            if s.backend is backend and s.graph.symbols and compiler.target is not None
            else None
            for s in segments
        )
    parts = graph, guards, compiler, segments, plans, pinned or {}, seconds
    return SegmentedProgram(source, *parts)


def _plan(segment: Segment, compiler: Compiler, seconds: dict[str, float]) -> Planned:
    from quantglow.memory.planning import plan_program

    planned = plan_program(segment.graph, compiler.target, seconds, schedule=compiler.schedule)
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
