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
from quantglow.graph.signature import Dim, Port, Signature, is_symbol
from quantglow.instr.donation import Donation
from quantglow.instr.program import BufferKind
from quantglow.lazy import cached_property
from quantglow.lowering.split_batch import batch_of, split_batch
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.runtime.batches import Traffic, pieces_for
from quantglow.runtime.build import Compiler, PlannedProgram, plan_program
from quantglow.symbolic.expression import LARGEST, SMALLEST, Expression, Values
from quantglow.symbolic.guards import Guards
from quantglow.symbolic.size import expression_of, symbols
from quantglow.types import ElementType, TensorType

Template = tuple[tuple[str, tuple[int | str, ...]], ...]
"""Shapes by input name; a free dimension is the name of its symbol."""

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

    def at(self, capacity: int) -> tuple[Donation, ...]:
        """The donations to a program, for a capacity that is free."""
        return tuple(Donation(*pair, capacity) for pair in self.pairs)


@dataclass(frozen=True, eq=False, repr=False)
class GeneralProgram(Concise):
    """A program for all shapes that fit ``template`` and the guards.

    ``values``: the deciding values of inputs for which the graph was made.  ``batch``: the symbol
    of the batch, if its samples may be computed apart.
    """

    graph: Graph
    template: Template
    values: tuple[tuple[str, tuple[int, ...]], ...] | None
    planned: PlannedProgram
    order: OrderedPlan
    guards: Guards
    compiler: Compiler
    batch: str | None = None

    @cached_property
    def executable(self) -> FreeExecutable:
        """The machine code.  It may add guards."""
        target = self.compiler.target
        assert target is not None
        with debug.timed("general program"):
            return compile_free_program(
                self.planned.program, self.order, self.guards, target, self.compiler.num_threads
            )

    def values_at(self, case: Case, more: Values | None = None) -> Values | None:
        """The values of the symbols at a case, and ``more``; None if the plan does not fit it."""
        found = fitting(self.template, case) if case.values == self.values else None
        values = None if found is None else {**found, **(more or {})}
        return None if values is None or not self.guards.hold(values) else values

    def code_at(self, values: Values) -> LlvmExecutable | None:
        """The code for values at which the plan fits, made now if need be; None where the guards
        of the code do not hold."""
        executable = self.executable
        return executable.at(values) if self.guards.hold(values) else None

    def pieces_at(self, values: Values) -> int:
        """The number of pieces in which a batch is best computed."""
        if self.batch is None:
            return 1
        weights, moved = self._moved
        peak = self.order.offsets([expression_of(n).at(values) for n in self.order.nbytes])[1]
        traffic = Traffic(weights, moved.at(values), peak)
        return pieces_for(values[self.batch], traffic, self.compiler.num_threads)

    @cached_property
    def _moved(self) -> tuple[int, Expression]:
        """Bytes of all weights, and of all other values."""
        buffers = self.planned.program.buffers
        weights = sum(b.nbytes for b in buffers if b.kind is BufferKind.CONSTANT)
        return weights, expression_of(sum(b.nbytes for b in buffers) - weights)

    def ends_at(self, values: Values) -> Ends:
        """The types of inputs and outputs."""
        inputs, outputs = self.graph.inputs, [node for _, node in self.graph.outputs]
        return _types_at(inputs, values), _types_at(outputs, values)


def _types_at(nodes: Iterable[Node], values: Values) -> tuple[TensorType, ...]:
    return tuple(
        node.type.with_shape(tuple(expression_of(size).at(values) for size in node.type.shape))
        for node in nodes
    )


def template_of(signature: Signature, case: Case) -> Template:
    """The shapes of a case with symbols for its free dimensions but those of 1."""
    shapes = case.shape_map
    return tuple((port.name, _symbolic(port, shapes[port.name])) for port in signature.inputs)


def _symbolic(port: Port, shape: tuple[int, ...]) -> tuple[int | str, ...]:
    dims: tuple[Dim, ...] = port.dims or (None,) * len(shape)
    return tuple(
        size if isinstance(dim, int) or size < SMALLEST else _symbol_of(port, axis, dim)
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True))
    )


def _symbol_of(port: Port, axis: int, dim: Dim) -> str:
    """The name of a free dimension: its own, which others may share, or that of its place."""
    return str(dim) if is_symbol(dim) else f"{port.name}:{axis}"


def fitting(template: Template, case: Case) -> dict[str, int] | None:
    """The values of the symbols at the shapes of a case; None if these do not fit."""
    found: dict[str, int] = {}
    shapes = case.shape_map
    for name, dims in template:
        shape = shapes[name]
        if len(shape) != len(dims):
            return None
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                if dim != size:
                    return None
            elif not SMALLEST <= size <= LARGEST or found.setdefault(dim, size) != size:
                return None
    return found


def integers(graph: Graph) -> dict[str, ElementType]:
    """The type of each quantized value."""
    return {node.name: node.type.element for node in graph.every_node() if node.type.quant}


def general_program(
    signature: Signature,
    case: Case,
    graph_at: Callable[[Case], Graph],
    compiler: Compiler,
    donated: Donated | None = None,
    caution: int = 0,
) -> GeneralProgram | None:
    """The general program planned at a case.

    ``donated``: inputs whose memory becomes outputs.  ``caution``: halvings of the sizes for which
    tiles are chosen.

    None if nothing of it is free, if it takes several programs or backends, or if other values
    would be integers than in a program of its own.

    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    target, template = compiler.target, template_of(signature, case)
    hints = fitting(template, case)
    if donated is not None:
        hints = {**(hints or {}), donated.symbol: donated.capacity}
    if not hints or target is None:
        return None
    sizes, guards = symbols(hints, caution)
    shapes = {
        name: tuple(d if isinstance(d, int) else sizes[d] for d in dims) for name, dims in template
    }
    graph = graph_at(Case(tuple(sorted(shapes.items())), case.values))
    own = graph_at(case)
    if not compiler.is_one_program(graph) or integers(graph) != integers(own):
        return None
    donations = () if donated is None else donated.at(sizes[donated.symbol])
    with debug.timed("general plan"):
        batch = _batch_symbol(template, own) if donated is None else None
        planned = plan_program(graph, target, donations=donations)
        order = OrderedPlan.of(planned.program, planned.plan)
    return GeneralProgram(graph, template, case.values, planned, order, guards, compiler, batch)


def _batch_symbol(template: Template, graph: Graph) -> str | None:
    """The free axis 0 of all inputs, if the samples of a graph of this template are independent."""
    firsts = {dims[0] if dims else 1 for _, dims in template}
    first = firsts.pop()
    if firsts or isinstance(first, int) or (batch := batch_of(graph)) is None:
        return None
    return None if split_batch(graph, batch) is None else first
