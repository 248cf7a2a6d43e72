"""General programs: one for all shapes at which its guards hold.

The graph is made for one shape, with a symbol for each free dimension; so is all that follows, and
each decision that depends on a symbol is a guard (``symbolic``).  A dimension of 1 is no symbol:
axes of 1 change the structure of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantglow import debug
from quantglow.backends.llvm.runtime.executable import LlvmExecutable
from quantglow.backends.llvm.runtime.free_executable import FreeExecutable, compile_free_program
from quantglow.concise import Concise
from quantglow.graph.case import Case
from quantglow.graph.graph import Graph
from quantglow.graph.signature import Dim, Port, Signature, is_symbol
from quantglow.instr.program import BufferKind
from quantglow.lowering.split_batch import batch_of, split_batch
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.runtime.batches import Traffic, pieces_for
from quantglow.runtime.build import Compiler, PlannedProgram, plan_program
from quantglow.symbolic.expression import LARGEST, SMALLEST, Values
from quantglow.symbolic.size import expression_of, likely, symbols
from quantglow.types import ElementType

Template = tuple[tuple[str, tuple[int | str, ...]], ...]
"""Shapes by input name; a free dimension is the name of its symbol."""


@dataclass(frozen=True, eq=False, repr=False)
class GeneralProgram(Concise):
    """A compiled graph for all shapes that fit ``template`` and the guards.

    ``values``: the deciding values of inputs for which the graph was made.  ``batch``: the symbol
    of the batch, if its samples may be computed apart.
    """

    graph: Graph
    template: Template
    values: tuple[tuple[str, tuple[int, ...]], ...] | None
    executable: FreeExecutable
    batch: str | None = None

    def values_at(self, case: Case) -> Values | None:
        """The values of the symbols at a case; None if the program does not serve it."""
        values = fitting(self.template, case) if case.values == self.values else None
        return None if values is None or not self.executable.guards.hold(values) else values

    def at(self, values: Values) -> LlvmExecutable | None:
        """The executable for values of the symbols; None where a program of its own would compute
        the batch in pieces."""
        made = self.executable.at(values)
        return None if self._is_in_pieces(values, made) else made

    def _is_in_pieces(self, values: Values, made: LlvmExecutable) -> bool:
        if self.batch is None:
            return False
        order = self.executable.program.order
        assert order is not None
        moved = sum(expression_of(nbytes).at(values) for nbytes in order.nbytes)
        weights = sum(array.nbytes for array in self.executable.program.constants)
        traffic = Traffic(weights, moved, made.binding.arena_nbytes)
        return pieces_for(values[self.batch], traffic, self.executable.threads) > 1


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
    return {node.name: node.type.element for node in graph.nodes if node.type.quant is not None}


def general_program(
    signature: Signature, case: Case, graph_at: Callable[[Case], Graph], compiler: Compiler
) -> GeneralProgram | None:
    """The general program made at a case.

    None if nothing of it is free, if it takes several programs or backends, if the batch is better
    computed in pieces, or if other values would be integers than in a program of its own.

    Raises ``QuantglowError`` for graphs that cannot be compiled.
    """
    target, template = compiler.target, template_of(signature, case)
    hints = fitting(template, case)
    if not hints or target is None:
        return None
    sizes, guards = symbols(hints)
    shapes = {
        name: tuple(d if isinstance(d, int) else sizes[d] for d in dims) for name, dims in template
    }
    graph = graph_at(Case(tuple(sorted(shapes.items())), case.values))
    own = graph_at(case)
    if not compiler.is_one_program(graph) or integers(graph) != integers(own):
        return None
    with debug.timed("general program"):
        batch, planned = _batch_symbol(template, own), plan_program(graph, target)
        if batch is not None and _pieces(hints[batch], planned, compiler.num_threads) > 1:
            return None
        order = OrderedPlan.of(planned.program, planned.plan)
        made = compile_free_program(planned.program, order, guards, target, compiler.num_threads)
    return GeneralProgram(graph, template, case.values, made, batch)


def _pieces(batch: int, planned: PlannedProgram, threads: int) -> int:
    """Pieces of the batch at the shape for which a program is planned."""
    buffers = planned.program.buffers
    weights = sum(b.nbytes for b in buffers if b.kind is BufferKind.CONSTANT)
    moved = sum(likely(b.nbytes) for b in buffers) - weights
    return pieces_for(batch, Traffic(weights, moved, planned.plan.peak_nbytes), threads)


def _batch_symbol(template: Template, graph: Graph) -> str | None:
    """The free axis 0 of all inputs, if the samples of a graph of this template are independent."""
    firsts = {dims[0] if dims else 1 for _, dims in template}
    first = firsts.pop()
    if firsts or isinstance(first, int) or (batch := batch_of(graph)) is None:
        return None
    return None if split_batch(graph, batch) is None else first
