"""General programs: one for all shapes at which its guards hold.

The graph is made for one shape, with a symbol for each free dimension; so is all that follows, and
each decision that depends on a symbol is a guard (``symbolic``).  A dimension of 1 is no symbol:
axes of 1 change the structure of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quantglow import debug
from quantglow.backends.llvm.runtime.executable import LlvmExecutable
from quantglow.backends.llvm.runtime.free_executable import FreeExecutable, compile_free_program
from quantglow.concise import Concise
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.graph.signature import Signature
from quantglow.instr.donation import Donation
from quantglow.instr.program import BufferKind
from quantglow.lazy import cached_property
from quantglow.lowering.split_batch import batch_of, split_batch
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.ops.external import External
from quantglow.runtime.batches import Traffic, pieces_for
from quantglow.runtime.build import Compiler, PlannedProgram, plan_program
from quantglow.runtime.fallback import FallbackNode
from quantglow.runtime.symbolic_graphs import SymbolicGraph
from quantglow.runtime.templates import Template, case_with, fitting, template_of
from quantglow.symbolic.expression import Expression, Values, symbol
from quantglow.symbolic.guards import Guards
from quantglow.symbolic.size import expression_of, sized, symbols
from quantglow.types import ElementType, TensorType

Ends = tuple[tuple[TensorType, ...], tuple[TensorType, ...]]
"""Types of the inputs and of the outputs."""


CAPACITY = "state:capacity"
"""The symbol of the rows for which a state has memory; no dimension of a model has such a name."""


@dataclass(frozen=True)
class Donated:
    """Inputs whose memory becomes outputs: ``(input, output, axis)``; the symbol of their capacity
    of rows, and the capacity at hand."""

    pairs: tuple[tuple[str, str, int], ...]
    symbol: str
    capacity: int

    def at(self, guards: Guards) -> tuple[Donation, ...]:
        """The donations to a program, for a capacity that is free."""
        capacity = sized(symbol(self.symbol), guards)
        return tuple(Donation(*pair, capacity) for pair in self.pairs)


@dataclass(frozen=True, eq=False, repr=False)
class General(Concise):
    """Programs for all shapes that fit the template of their ``source``, and the guards."""

    source: SymbolicGraph
    graph: Graph
    guards: Guards
    compiler: Compiler

    def values_at(self, case: Case, more: Values | None = None) -> Values | None:
        """The values of the symbols at a case, and ``more``; None if the plan does not fit it."""
        source = self.source
        found = fitting(source.template, case) if case.values == source.values else None
        values = None if found is None else {**found, **(more or {})}
        return None if values is None or not self.guards.hold(values) else values

    def ends_at(self, values: Values) -> Ends:
        """The types of inputs and outputs."""
        outputs = [node for _, node in self.graph.outputs]
        return types_at(self.graph.inputs, values), types_at(outputs, values)


@dataclass(frozen=True, eq=False, repr=False)
class GeneralProgram(General):
    """One program for all shapes."""

    planned: PlannedProgram
    order: OrderedPlan

    @cached_property
    def executable(self) -> FreeExecutable:
        """The machine code.  It may add guards."""
        target, threads = self.compiler.target, self.compiler.num_threads
        assert target is not None
        with debug.timed("general program"):
            made = compile_free_program(
                self.planned.program, self.order, self.guards, target, threads
            )
        self.guards.is_closed = True
        return made

    def code_at(self, values: Values) -> LlvmExecutable | None:
        """The code for values at which the plan fits, made now if need be; None where the guards
        of the code do not hold."""
        were_known, executable = self.guards.is_closed, self.executable
        return executable.at(values) if were_known or self.guards.hold(values) else None

    def pieces_at(self, values: Values) -> int:
        """The number of pieces in which a batch is best computed."""
        batch = self.source.batch
        if batch is None:
            return 1
        weights, moved = self._moved
        peak = self.order.offsets([expression_of(n).at(values) for n in self.order.nbytes])[1]
        traffic = Traffic(weights, moved.at(values), peak)
        return pieces_for(values[batch], traffic, self.compiler.num_threads)

    @cached_property
    def _moved(self) -> tuple[int, Expression]:
        """Bytes of all weights, and of all other values."""
        buffers = self.planned.program.buffers
        weights = sum(b.nbytes for b in buffers if b.kind is BufferKind.CONSTANT)
        return weights, expression_of(sum(b.nbytes for b in buffers) - weights)

    @property
    def fallback(self) -> tuple[FallbackNode, ...]:
        """No operators run elsewhere."""
        return ()


def types_at(nodes: Iterable[Node], values: Values) -> tuple[TensorType, ...]:
    return tuple(
        node.type.with_shape(tuple(expression_of(size).at(values) for size in node.type.shape))
        for node in nodes
    )


def integers(graph: Graph) -> dict[str, ElementType]:
    """The type of each quantized value."""
    return {node.name: node.type.element for node in graph.every_node() if node.type.quant}


def externals(graph: Graph) -> set[str]:
    """The values that other runtimes compute."""
    return {node.name for node in graph.nodes if isinstance(node, External)}


def general_program(
    signature: Signature,
    case: Case,
    graph_at: Callable[[Case], Graph],
    compiler: Compiler,
    donated: Donated | None = None,
) -> GeneralProgram | None:
    """The general program planned at a case.

    ``donated``: inputs whose memory becomes outputs.  None where ``symbolic_graph`` has none.
    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    made = symbolic_graph(signature, case, graph_at, compiler, donated)
    return None if made is None else planned_program(*made, compiler, donated)


def symbolic_graph(
    signature: Signature,
    case: Case,
    graph_at: Callable[[Case], Graph],
    compiler: Compiler,
    donated: Donated | None = None,
    caution: int = 0,
) -> tuple[SymbolicGraph, Graph, Guards] | None:
    """The graph for all shapes, made at a case.  ``caution``: see ``Guards``.

    None if nothing of it is free, if it takes code generators of others (or several programs, while
    memory is ``donated``), or if other values would be integers, or come from onnxruntime, than in
    a program of its own.
    """
    template = template_of(signature, case)
    hints = fitting(template, case)
    if donated is not None:
        hints = {**(hints or {}), donated.symbol: donated.capacity}
    if not hints or compiler.target is None:
        return None
    sizes, guards = symbols(hints, caution)
    graph = graph_at(case_with(template, sizes, case.values))
    own = graph_at(case)
    is_taken = compiler.is_own if donated is None else compiler.is_one_program(graph)
    if not is_taken or (integers(graph), externals(graph)) != (integers(own), externals(own)):
        return None
    batch = _batch_symbol(template, own) if donated is None else None
    return SymbolicGraph.of(graph, guards, template, case.values, batch), graph, guards


def planned_program(
    source: SymbolicGraph,
    graph: Graph,
    guards: Guards,
    compiler: Compiler,
    donated: Donated | None = None,
) -> GeneralProgram:
    """The general program of a graph for all shapes, planned for its hints.

    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    donations = () if donated is None else donated.at(guards)
    with debug.timed("general plan"):
        planned = plan_program(
            graph, compiler.target, donations=donations, schedule=compiler.schedule
        )
        order = OrderedPlan.of(planned.program, planned.plan)
    return GeneralProgram(source, graph, guards, compiler, planned, order)


def _batch_symbol(template: Template, graph: Graph) -> str | None:
    """The free axis 0 of all inputs, if the samples of a graph of this template are independent."""
    firsts = {dims[0] if dims else 1 for _, dims in template}
    first = firsts.pop()
    if firsts or isinstance(first, int) or (batch := batch_of(graph)) is None:
        return None
    return None if split_batch(graph, batch) is None else first
