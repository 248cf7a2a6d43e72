"""Graphs for all shapes at which their conditions hold, as text, and the symbols of their shapes.

A graph for other sizes of the same symbols is read from the text: nothing is imported or decided
again.  A saved model keeps such texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from quantglow.ir.graph.attributes import ArrayMark
from quantglow.ir.graph.family import Case, FreeCase, constant_arrays, content_key, values_from_json
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import check_stored
from quantglow.ir.graph.signature import Port, PortDim, Signature, are_outputs, is_symbol
from quantglow.ir.graph.text import parse_graph, print_without_scales, text_constants, text_scales
from quantglow.ir.symbolic.expression import LARGEST, SMALLEST, USUAL
from quantglow.ir.symbolic.guards import Guard, Guards
from quantglow.ir.symbolic.size import Dim, surely_equal, symbols
from quantglow.ir.symbolic.text import guard_text, identifiers, read_guards
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import FileFormatError, QuantglowError
from quantglow.transforms.split_batch import batch_size, split_batch

Template = tuple[tuple[str, tuple[int | str, ...]], ...]
"""Shapes by input name; a free dimension is the name of its symbol, an identifier."""

Values = tuple[tuple[str, tuple[int, ...]], ...] | None
"""Deciding values of inputs, as a ``Case`` has them."""

AnyDim = TypeVar("AnyDim", int, Dim)


def case_template(signature: Signature, case: Case) -> Template:
    """The shapes of a case with symbols for its free dimensions but those of 1."""
    shapes = case.shape_map
    free = [(p, list(_free_dimensions(p, len(shapes[p.name])))) for p in signature.inputs]
    names = identifiers(dict.fromkeys(name for _, dimensions in free for _, name in dimensions))
    template = []
    for port, dimensions in free:
        sizes: list[int | str] = [*shapes[port.name]]
        for axis, name in dimensions:
            if shapes[port.name][axis] >= SMALLEST:
                sizes[axis] = names[name]
        template.append((port.name, tuple(sizes)))
    return tuple(template)


def _free_dimensions(port: Port, rank: int) -> Iterator[tuple[int, str]]:
    """The axis and the name of each free dimension: its own, which others may share, or that of its
    place.
    """
    dims: tuple[PortDim, ...] = port.dims or (None,) * rank
    for axis, dim in enumerate(dims):
        if not isinstance(dim, int):
            yield axis, str(dim) if is_symbol(dim) else f"{port.name}_{axis}"


def without_ones(signature: Signature, case: Case) -> Case:
    """The case with ``USUAL`` for each free dimension of 1."""
    shapes = {name: [*shape] for name, shape in case.shapes}
    for port in signature.inputs:
        for axis, _ in _free_dimensions(port, len(shapes[port.name])):
            if shapes[port.name][axis] < SMALLEST:
                shapes[port.name][axis] = USUAL
    larger = {name: tuple(shape) for name, shape in shapes.items()}
    return replace(Case.of(larger), values=case.values)


def fitting(template: Template, case: Case) -> dict[str, int] | None:
    """The values of the symbols at the shapes of a case; None if these do not fit."""
    values: dict[str, int] = {}
    shapes = case.shape_map
    for dims, shape in dict.fromkeys([(dims, shapes[name]) for name, dims in template]):
        if len(shape) != len(dims):
            return None
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                if dim != size:
                    return None
            elif not SMALLEST <= size <= LARGEST or values.setdefault(dim, size) != size:
                return None
    return values


def case_with(template: Template, sizes: Mapping[str, int], values: Values) -> Case:
    """The case of a template with these sizes for its symbols."""
    return Case(_shapes_with(template, sizes), values)


def free_case(template: Template, sizes: Mapping[str, Dim], values: Values) -> FreeCase:
    """The case of a template with sizes for its symbols that may be free."""
    return FreeCase(_shapes_with(template, sizes), values)


def _shapes_with(
    template: Template, sizes: Mapping[str, AnyDim]
) -> tuple[tuple[str, tuple[AnyDim, ...]], ...]:
    """The shapes in a template by name, in order."""
    shapes = {
        name: tuple(dim if isinstance(dim, int) else sizes[dim] for dim in dims)
        for name, dims in template
    }
    return tuple((name, shapes[name]) for name in sorted(shapes))


@dataclass(frozen=True, eq=False, repr=False)
class SymbolicGraph(Concise):
    """A graph for all shapes that fit ``template``, where ``conditions`` hold.

    ``values``: the deciding values of inputs for which it was made.  ``hints``: the sizes of its
    symbols then.  ``claimed_batch``: see ``batch``; that of a file is derived again, ``is_read``.
    ``ports``: the outputs as the model declares them.
    ``outputs``: their names.  ``constants`` and ``scales``: the arrays that the text refers to.
    """

    template: Template
    values: Values
    hints: Mapping[str, int]
    conditions: tuple[Guard, ...]
    claimed_batch: str | None
    outputs: tuple[str, ...]
    text: str
    constants: Mapping[str, Array]
    scales: Mapping[ArrayMark, Array]
    ports: tuple[Port, ...] = ()
    is_read: bool = False

    @staticmethod
    def of(
        graph: Graph,
        guards: Guards,
        template: Template,
        values: Values,
        batch: str | None,
        ports: tuple[Port, ...],
    ) -> SymbolicGraph:
        """The form of a graph that was just made with these guards."""
        return SymbolicGraph(
            template,
            values,
            dict(guards.hints),
            tuple(guards.recorded),
            batch,
            tuple(name for name, _ in graph.outputs),
            print_without_scales(graph),
            text_constants(graph),
            text_scales(graph),
            ports,
        )

    @cached_property
    def batch(self) -> str | None:
        """The symbol of the batch, if the graph of one sample does not depend on it: samples may be
        computed apart wherever the conditions hold for the part, too.
        """
        if self.claimed_batch is None or not self.is_read:
            return self.claimed_batch
        try:
            return batch_symbol(self.template, *self.at(self.hints))
        except QuantglowError:
            return None

    def share_added(self, graph: Graph) -> float:
        """Bytes of its constants that a graph does not have, as a share of those of the graph."""
        present = {content_key(array): array.nbytes for array in constant_arrays(graph)}
        constants = {content_key(array): array.nbytes for array in self.constants.values()}
        added = sum(nbytes for key, nbytes in constants.items() if key not in present)
        return added / max(1, sum(present.values()))

    def with_arrays(self, arrays: Mapping[int, Array]) -> SymbolicGraph:
        """The same with other constants, by the ``id`` of its own."""
        constants = {name: arrays.get(id(array), array) for name, array in self.constants.items()}
        return replace(self, constants=constants)

    def sizes_at(self, case: Case) -> dict[str, int] | None:
        """The sizes of the symbols at a case; None where the graph does not serve it."""
        sizes = fitting(self.template, case) if case.values == self.values else None
        return sizes if sizes is not None and self.holds(sizes) else None

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether its conditions hold for sizes of the symbols."""
        return all(guard.holds(values) for guard in self.conditions)

    def joins_samples(self, values: Mapping[str, int], counts: Iterable[int]) -> bool:
        """Whether samples are independent, and it is the graph of each of these numbers of them."""
        batch = self.batch
        if batch is None:
            return False
        named = [guard for guard in self.conditions if batch in guard.expression.names]
        asked = [guard for guard in named if not guard.is_limit]
        sizes = ({**values, batch: count} for count in counts)
        return all(guard.holds(size) for size in sizes for guard in asked)

    def at(self, hints: Mapping[str, int], caution: int = 0) -> tuple[Graph, Guards]:
        """The graph with these sizes as hints, and its guards.

        Raises ``FileFormatError`` or another ``QuantglowError`` if the text is damaged.
        """
        sizes, guards = symbols(hints, caution)
        for guard in self.conditions:
            guards.record(guard)
        graph = parse_graph(self.text, self.constants, self.scales, sizes)
        check_stored(graph.every_node())
        graph.verify()
        self._check(graph, free_case(self.template, sizes, self.values))
        return graph, guards

    def _check(self, graph: Graph, case: FreeCase) -> None:
        """Raise ``FileFormatError`` unless the graph has the inputs and outputs that were said."""
        shapes, input_shapes = case.shape_map, {node.name: node.type.shape for node in graph.inputs}
        if (
            input_shapes.keys() != shapes.keys()
            or not all(surely_equal(input_shapes[name], shape) for name, shape in shapes.items())
            or tuple(name for name, _ in graph.outputs) != self.outputs
            or (
                self.is_read
                and self.ports
                and not are_outputs(self.ports, (n.type for _, n in graph.outputs), graph.declared)
            )
            or text_constants(graph).keys() != self.constants.keys()
        ):
            raise FileFormatError(
                "a graph for all shapes has other inputs, outputs or constants than the file says. "
                "Remedy: save the model again."
            )

    def to_json(self) -> dict[str, Any]:
        """All but the text and the arrays, in types that ``json`` writes."""
        return {
            "inputs": [[name, list(dims)] for name, dims in self.template],
            "outputs": list(self.outputs),
            "values": None if self.values is None else dict(self.values),
            "sizes": dict(self.hints),
            "conditions": list(map(guard_text, self.conditions)),
            "batch": self.claimed_batch,
            "one_sample": True,
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any],
        text: str,
        constants: Mapping[str, Array],
        scales: Mapping[ArrayMark, Array],
    ) -> SymbolicGraph:
        """The graph from the result of ``to_json`` and the rest of a file.

        Raises ``KeyError``, ``TypeError``, ``AttributeError`` or ``ValueError``.
        """
        hints = {str(name): int(size) for name, size in data["sizes"].items()}
        if not all(SMALLEST <= size <= LARGEST for size in hints.values()):
            raise ValueError(f"{hints} are no sizes of free dimensions")
        # In files without "one_sample" the graph of one sample may depend on the batch.
        values, batch = data["values"], data["batch"] if data.get("one_sample") else None
        graph = SymbolicGraph(
            tuple((str(name), tuple(dims)) for name, dims in data["inputs"]),
            None if values is None else Case.of({}, values_from_json(values)).values,
            hints,
            read_guards(map(str, data["conditions"]), hints),
            None if batch is None else str(batch),
            tuple(map(str, data["outputs"])),
            text,
            constants,
            scales,
            is_read=True,
        )
        case = case_with(graph.template, hints, graph.values)
        firsts = {dims[:1] for _, dims in graph.template}
        if (batch is not None and firsts != {(batch,)}) or graph.sizes_at(case) != hints:
            raise ValueError("the sizes of a graph for all shapes do not fit its conditions")
        return graph

    def of_model(self, signature: Signature) -> SymbolicGraph:
        """The same as a graph of a model of the signature.  Raises ``InputError``, ``KeyError`` or
        ``ValueError`` unless it may be one."""
        signature.check(case_with(self.template, dict(self.hints), self.values).shape_map)
        names = [name for name, _ in self.template], list(self.outputs)
        if names != ([p.name for p in signature.inputs], [p.name for p in signature.outputs]):
            raise ValueError("a graph for all shapes has other inputs or outputs than the model")
        return replace(self, ports=signature.outputs)


def batch_symbol(template: Template, graph: Graph, guards: Guards) -> str | None:
    """The free axis 0 of all inputs, if the graph of one sample does not depend on it."""
    firsts = {dims[0] if dims else 1 for _, dims in template}
    first = firsts.pop()
    if firsts or isinstance(first, int) or any(first in dims[1:] for _, dims in template):
        return None
    with guards.forgetting() as asked:
        batch = batch_size(graph)
        part = None if batch is None else split_batch(graph, batch)
    if part is None or not all(guard.is_limit for guard in asked):
        return None
    return None if first in part.symbols else first
