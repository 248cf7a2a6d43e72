"""General programs: one for all shapes at which its guards hold.

The graph is made for one shape, with a symbol for each free dimension; so is all that follows, and
each decision that depends on a symbol is a guard (``ir.symbolic``).  A dimension of 1 is no symbol:
axes of 1 change the structure of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quantglow.ir.graph.family import Case, FreeCase
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import Signature
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import Values, symbol
from quantglow.ir.symbolic.guards import Conditions, Guards
from quantglow.ir.symbolic.size import size, symbols
from quantglow.ir.types import ElementType
from quantglow.memory.plans import Planning, pieces_for
from quantglow.ort.fallback import FallbackNode
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.loaded import GROWTH, LoadedProgram
from quantglow.runtime.native.program_store import ProgramStore
from quantglow.runtime.programs.build import Compiler
from quantglow.runtime.programs.symbolic_graphs import (
    SymbolicGraph,
    batch_symbol,
    case_template,
    fitting,
    free_case,
)
from quantglow.runtime.shapes.general_plans import Ends, GeneralPlan, conditions_from
from quantglow.support import debug
from quantglow.support.classes import Concise, cached_property
from quantglow.transforms.partition import Segment
from quantglow.transforms.program.copy_elision import Donation

if TYPE_CHECKING:
    from quantglow.runtime.shapes.general_planning import BuiltPlan

CAPACITY = "state:capacity"
"""The symbol of the rows for which a state has memory; no dimension of a model has such a name."""

JOINED = "samples:joined"
"""The symbol of the samples of joined calls, the same for all inputs."""

Holding = Guards | Conditions
"""Tells where a program serves."""

Opened = Callable[[], tuple[Graph, Guards]]
"""Function that gives the graph for all shapes, and its guards."""


@dataclass(frozen=True)
class Donated:
    """Inputs whose memory becomes outputs: ``(input, output, axis)``; the symbol of their capacity
    of rows, and the capacity at hand."""

    pairs: tuple[tuple[str, str, int], ...]
    symbol: str
    capacity: int

    def at(self, guards: Guards) -> tuple[Donation, ...]:
        """The donations to a program, for a capacity that is free."""
        capacity = size(symbol(self.symbol), guards)
        return tuple(Donation(*pair, capacity) for pair in self.pairs)


@dataclass(frozen=True, eq=False, repr=False)
class GeneralProgram(Concise):
    """A program for all shapes that fit the template of its ``source``, where its guards hold.

    ``plan``: what is known before there is code.  ``make`` plans it, if its plan was read.
    ``key``: that of the stored program, None if it is not kept.  ``seconds``: the time of each
    stage of the compiler.
    """

    source: SymbolicGraph
    plan: GeneralPlan
    make: Callable[[], BuiltPlan]
    compiler: Compiler
    key: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def lowered(self) -> BuiltPlan:
        """The planned program."""
        return self.make()

    @cached_property
    def code(self) -> GeneralCode:
        """The machine code, stored or made now.  It may add guards."""
        target, threads = self.compiler.target, self.compiler.num_threads
        assert target is not None
        store, key = ProgramStore(), self.key
        with debug.time_stage("read program", spent := dict[str, float]()):
            stored = key and store.program(key, target, threads, conditions_from, GROWTH)
        if stored:
            self.seconds.update(spent)
            return GeneralCode(*stored)
        # Only here: a process that finds its programs on disk generates no code.
        from quantglow.runtime.native.compilation import compile_free_program

        lowered = self.lowered
        with debug.time_stage("generate code", self.seconds):
            loaded = compile_free_program(
                lowered.planned.program,
                lowered.order,
                lowered.guards,
                target,
                threads,
                is_checked=self.compiler.is_checked,
            )
        lowered.guards.is_closed = True
        if key:
            store.keep(key, loaded, lowered.guards.conditions().to_json())
        return GeneralCode(loaded, lowered.guards)

    def load_kernels(self, check: Callable[[], object]) -> None:
        """Compile the kernels that ``code`` of such a program needs, whatever its weights.

        ``check`` is called before each kernel; its error ends the work.
        """
        from quantglow.runtime.native.compilation import load_free_kernels

        lowered, target = self.lowered, self.compiler.target
        assert target is not None
        parts = lowered.planned.program, lowered.order, lowered.guards
        load_free_kernels(*parts, target, check)

    @property
    def loaded(self) -> LoadedProgram:
        """The machine code."""
        return self.code.loaded

    @property
    def guards(self) -> Holding:
        """The shapes that it serves; once there is code, with the guards of the code."""
        code = self.__dict__.get("code")
        return code.guards if isinstance(code, GeneralCode) else self.plan.guards

    def values_at(self, case: Case, more: Values | None = None) -> Values | None:
        """The values of the symbols at a case, and ``more``; None if the plan does not fit it."""
        return values_at(self.source, self.guards, case, more)

    def code_at(self, values: Values) -> LlvmExecutable | None:
        """The code for values at which the plan fits, made now if need be; None where the guards
        of the code do not hold."""
        loaded = self.loaded
        return LlvmExecutable.of(loaded, values) if self.guards.hold(values) else None

    def pieces_at(self, values: Values) -> int:
        """The number of pieces in which a batch is best computed."""
        batch = self.source.claimed_batch
        if batch is None:
            return 1
        size, traffic = values[batch], self.plan.traffic_at(values)
        pieces = pieces_for(size, traffic, self.compiler.num_threads)
        if pieces == 1 or self.source.batch is None:
            return 1
        return pieces if self.source.holds({**values, batch: size // pieces}) else 1

    def ends_at(self, values: Values) -> Ends:
        """The types of inputs and outputs."""
        return self.plan.ends_at(values)

    @property
    def plannings(self) -> tuple[Planning, ...]:
        """Its plan at the hints."""
        return (Planning(self.plan.figures, lambda: self.lowered.planned),)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """None: it is one program."""
        return ()

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """No operators run elsewhere."""
        return ()


@dataclass(frozen=True, eq=False, repr=False)
class GeneralCode(Concise):
    """A loaded program, and where it serves."""

    loaded: LoadedProgram
    guards: Holding


def values_at(
    source: SymbolicGraph, guards: Holding, case: Case, more: Values | None = None
) -> Values | None:
    """The values of the symbols at a case, and ``more``; None where the guards do not hold."""
    sizes = fitting(source.template, case) if case.values == source.values else None
    values = None if sizes is None else {**sizes, **(more or {})}
    return None if values is None or not guards.hold(values) else values


def integers(graph: Graph) -> dict[str, ElementType]:
    """The type of each quantized value."""
    return {node.name: node.type.element for node in graph.every_node() if node.type.quant}


def _externals(graph: Graph) -> set[str]:
    """The values that other runtimes compute."""
    return {node.name for node in graph.nodes if isinstance(node, External)}


def general_program(
    signature: Signature,
    case: Case,
    graph_at: Callable[[FreeCase], Graph],
    compiler: Compiler,
    donated: Donated | None = None,
    caution: int = 0,
) -> GeneralProgram | None:
    """The general program planned at a case.

    ``donated``: inputs whose memory becomes outputs.  ``caution``: see ``Guards``.  None where
    ``symbolic_graph`` has none, and for graphs in segments.  Raises ``QuantglowError`` for graphs
    that cannot be compiled.
    """
    parts = symbolic_graph(signature, case, graph_at, compiler, donated, caution)
    if parts is None or not compiler.is_one_program(parts[1]):
        return None
    return plan_program_for(*parts, compiler, donated)


def symbolic_graph(
    signature: Signature,
    case: Case,
    graph_at: Callable[[FreeCase], Graph],
    compiler: Compiler,
    donated: Donated | None = None,
    caution: int = 0,
) -> tuple[SymbolicGraph, Graph, Guards] | None:
    """The graph for all shapes, made at a case.  ``caution``: see ``Guards``.

    None if nothing of it is free, if it takes code generators of others (or several programs, while
    memory is ``donated``), or if other values would be integers, or come from onnxruntime, than in
    a program of its own.
    """
    template = case_template(signature, case)
    hints = fitting(template, case)
    if donated is not None:
        hints = {**(hints or {}), donated.symbol: donated.capacity}
    if not hints or compiler.target is None:
        return None
    sizes, guards = symbols(hints, caution)
    graph = graph_at(free_case(template, sizes, case.values))
    is_compiled = compiler.is_own if donated is None else compiler.is_one_program(graph)
    if not is_compiled or not _has_parts_of_own(graph, case, graph_at):
        return None
    batch = batch_symbol(template, graph, guards) if donated is None else None
    source = SymbolicGraph.of(graph, guards, template, case.values, batch, signature.outputs)
    return source, graph, guards


def plan_program_for(
    source: SymbolicGraph,
    graph: Graph,
    guards: Guards,
    compiler: Compiler,
    donated: Donated | None = None,
) -> GeneralProgram:
    """The general program of a graph for all shapes, planned for its hints.

    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    # Only here: a process that finds its programs on disk plans none.
    from quantglow.runtime.shapes.general_planning import plan_general

    donations = () if donated is None else donated.at(guards)
    seconds = dict[str, float]()
    settings = compiler.target, donations, compiler.schedule, seconds
    program, plan = plan_general(graph, guards, *settings)
    return GeneralProgram(source, plan, lambda: program, compiler, seconds=seconds)


def load_program(
    source: SymbolicGraph, opened: Opened, compiler: Compiler, key: str | None
) -> GeneralProgram | None:
    """The general program that an earlier process planned of the graph that ``opened`` gives."""
    plan = key and ProgramStore().facts(f"{key}_plan", GeneralPlan.from_json)
    if not plan:
        return None
    return GeneralProgram(
        source, plan, lambda: plan_program_for(source, *opened(), compiler).lowered, compiler, key
    )


def keep_program(program: GeneralProgram, key: str | None) -> GeneralProgram:
    """A new program, kept for later processes."""
    if key is None:
        return program
    ProgramStore().keep_facts(f"{key}_plan", program.plan.to_json())
    return replace(program, key=key)


def join_graphs(
    signature: Signature, case: Case, graph_at: Callable[[FreeCase], Graph]
) -> SymbolicGraph | None:
    """The graph for all shapes at which all inputs have the same number of samples, for any
    compiler; no program is made of it."""
    ports = (replace(port, dims=(JOINED, *(port.dims or ())[1:])) for port in signature.inputs)
    template = case_template(Signature(tuple(ports), signature.outputs), case)
    hints = fitting(template, case)
    if not hints:
        return None
    sizes, guards = symbols(hints)
    graph = graph_at(free_case(template, sizes, case.values))
    batch = batch_symbol(template, graph, guards)
    return SymbolicGraph.of(graph, guards, template, case.values, batch, signature.outputs)


def _has_parts_of_own(graph: Graph, case: Case, graph_at: Callable[[FreeCase], Graph]) -> bool:
    """Whether integers and values of other runtimes are those of a program of its own.  That has
    neither where a graph for all shapes has neither."""
    parts = integers(graph), _externals(graph)
    if not any(parts):
        return True
    specialized = graph_at(case)
    return parts == (integers(specialized), _externals(specialized))
