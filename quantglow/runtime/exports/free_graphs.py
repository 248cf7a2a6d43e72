"""Graphs with free sizes, as they are exported, and whether they hold at other sizes.

Decisions that depend on a symbol are guards of the graph.  Where some do not hold, the graph of
such sizes is compared with this one: by its form, and if that differs by its results in
onnxruntime.  Nodes of the model whose import decided what differs are blamed: they can stay as they
are.

Sizes of inputs and late ones, which results have, are treated alike: for a comparison, results that
decide sizes become inputs, of any size that is to be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.graph.signature import Signature
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import SMALLEST, USUAL, symbol
from quantglow.ir.symbolic.guards import Guard, Guards, Relation
from quantglow.ir.symbolic.size import FixedShape, Size, symbols
from quantglow.ir.types import TensorType
from quantglow.ort.session import Session, open_session
from quantglow.runtime.exports.equivalence import differences
from quantglow.runtime.exports.trial_runs import draw_feeds, is_alike
from quantglow.runtime.programs.symbolic_graphs import Template, case_with, fitting, free_case
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.classes import cached_property
from quantglow.support.errors import ModelError, QuantglowError
from quantglow.transforms.size_sources import SizeSource, check_sources, late_sizes

REMEDY = "Remedy: export one shape, by input_shapes={name: shape}."

LATE_REMEDY = "Remedy: make the model choose a fixed number of rows, or export what comes before."

MOST_RUNS = 8
"""Maximum number of shapes at which an exported model is run beside the graph of the shape."""

MOST_ELEMENTS = 2**24
"""Maximum number of elements of a result that is drawn: one of eight axes has any number."""

MOST_ROUNDS = 32
"""Maximum number of graphs that are made with more and more nodes as they are."""

LATE_SIZES = (USUAL, 6, 4, 12, 10, *range(14, 1024, 2))
"""Sizes of results at which a graph is made: even, since models take pairs, and few first, since
results seldom have more rows than inputs."""

Sizes = Mapping[str, int]
"""Sizes of symbols."""


class CannotStayFreeError(ModelError):
    """A dimension has to be fixed; ``blamed`` are the nodes of the model that asked for it."""

    def __init__(self, message: str, blamed: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.blamed = frozenset(blamed)


@dataclass(frozen=True, eq=False)
class FreeGraph:
    """A graph with free sizes, made at a case, and the guards under which it is that of others.

    ``case`` has shapes of results that decide sizes where these are not the usual ones.
    ``atomic``: nodes of the model that it has as they are.
    """

    programs: FreeShapes
    template: Template
    case: Case
    graph: Graph
    guards: Guards
    cases: Sequence[Case] = field(default=(), repr=False)
    atomic: frozenset[str] = frozenset()

    @staticmethod
    def of(
        programs: FreeShapes,
        template: Template,
        case: Case,
        cases: Sequence[Case] = (),
        atomic: frozenset[str] = frozenset(),
    ) -> FreeGraph:
        """The graph at a case; ``cases``: cases that came.

        Raises ``QuantglowError`` where the model does not take it.
        """
        programs.signature.check(case.shape_map)
        sizes, guards = symbols(fitting(template, case) or {})
        guards.askers, guards.atomic = {}, atomic
        free = free_case(template, sizes, case.values)
        graph = programs.graph_at(replace(free, late=case.late, guards=guards))
        check_sources(graph, guards)
        graph = graph.rebuild(programs.compiler.in_onnx)
        return FreeGraph(programs, template, case, graph, guards, cases, atomic)

    @cached_property
    def late(self) -> dict[str, SizeSource]:
        """The sizes that results have, by symbol."""
        return late_sizes(self.graph)

    @cached_property
    def hints(self) -> Sizes:
        """The sizes of all symbols at which the graph was made."""
        sizes = fitting(self.template, self.case) or {}
        return {**sizes, **{name: self.guards.hints[name] for name in self.late}}

    @property
    def apart(self) -> FreeGraph:
        """The graph made at late sizes that differ from each other and from those of inputs, so
        that no decision takes two for one; the graph itself where the model does not take them."""
        sizes = dict(self.hints)
        occupied = {size for name, size in sizes.items() if name not in self.late}
        for name in self.late:
            sizes[name] = next(n for n in LATE_SIZES if n not in occupied)
            occupied.add(sizes[name])
        if sizes == self.hints:
            return self
        with suppress(QuantglowError):
            case = replace(self.case, late=self.late_shapes(sizes))
            return FreeGraph.of(self.programs, self.template, case, self.cases, self.atomic)
        return self

    def late_shapes(self, sizes: Sizes) -> tuple[tuple[str, FixedShape], ...]:
        """The shapes of the results that decide sizes."""
        nodes = dict.fromkeys(source.node for source in self.late.values())
        return tuple((node.name, _at(node.type, sizes).fixed_shape) for node in nodes)

    def model(self) -> bytes:
        """The ONNX model; nodes whose import holds for some sizes only are in it as they are.

        Raises ``CannotStayFreeError``.
        """
        graph = self
        for _ in range(MOST_ROUNDS):
            try:
                return graph.with_fixed(graph.pinned).checked
            except CannotStayFreeError as error:
                blamed = error.blamed - graph.atomic
                if not blamed:
                    raise
                graph = graph.with_atomic(blamed, error)
        return graph.with_fixed(graph.pinned).checked

    def with_atomic(self, nodes: frozenset[str], refusal: CannotStayFreeError) -> FreeGraph:
        """The graph with more nodes of the model as they are.

        Raises ``refusal`` where others have to know what they compute.
        """
        try:
            atomic = self.atomic | nodes
            return FreeGraph.of(self.programs, self.template, self.case, self.cases, atomic)
        except QuantglowError:
            raise refusal from None

    @cached_property
    def exported(self) -> bytes:
        """The ONNX model.  Raises ``ModelError``."""
        return _write(self.graph, self.programs.signature)

    @property
    def asked(self) -> dict[Guard, str]:
        """The guards that shapes may fail, and the places that need them."""
        return {guard: at for guard, at in self.guards.recorded.items() if not guard.is_limit}

    def blame(self, guards: Iterable[Guard], different: Iterable[Node] = ()) -> frozenset[str]:
        """The nodes of the model whose import asked for some guards or made some nodes; not those
        that are int8, which would be float as they are."""
        askers = self.guards.askers or {}
        nodes = {node for guard in guards for node in askers.get(guard, ())}
        origins = [self.graph.origins[n.name] for n in different if n.name in self.graph.origins]
        nodes |= {origin.results[0] for one in origins for origin in one.main if origin.results}
        products = {n.name for n in self.graph.nodes if isinstance(n, Contraction) and n.type.quant}
        return frozenset(nodes - products)

    @property
    def pinned(self) -> dict[str, int]:
        """Symbols that guards fix, with their sizes.

        Raises ``CannotStayFreeError`` for one of which the model takes other sizes.
        """
        self.exported  # noqa: B018 - the exporter may ask for guards, too
        fixed: dict[str, int] = {}
        for name, hint in self.hints.items():
            low, high = self.guards.bounds(symbol(name))
            if low != high:
                continue
            fixed[name] = hint
            # A size of a result is never fixed: what the result is depends on values.
            if name in self.late or any(map(self.takes, self.elsewhere(name))):
                reasons = self.fixing(name)
                why = str(reasons[0]) if reasons else name
                raise CannotStayFreeError(
                    f"what the model computes from {self.called([name])} has an ONNX form at "
                    f"one size only, so it cannot stay free ({why}). {self.remedy([name])}",
                    self.blame(reasons),
                )
        return fixed

    def called(self, names: Iterable[str]) -> str:
        """The dimensions and results that symbols are sizes of."""
        late = (self.late.get(name) for name in names)
        return ", ".join(
            f"its dimension {name!r}"
            if source is None
            else f"the size of {source.node.name!r} along axis {source.axis}"
            for name, source in zip(names, late, strict=True)
        )

    def remedy(self, names: Iterable[str]) -> str:
        """The remedy for a model whose sizes cannot stay free."""
        return LATE_REMEDY if any(name in self.late for name in names) else REMEDY

    def elsewhere(self, name: str) -> Iterator[Sizes]:
        """Sizes at which one symbol has another: cases that came, all sizes alike, since one may be
        the sum of others, and this symbol, alone or with one that may have to be as far off."""
        hint = self.hints[name]
        yield from (sizes for sizes in self.came if sizes[name] != hint)
        yield {other: 2 * size for other, size in self.hints.items()}
        yield from ({**self.hints, name: size} for size in _others(hint))
        for other, size in self.hints.items():
            yield {**self.hints, name: hint + 1, other: size + 1}

    @property
    def came(self) -> Iterator[Sizes]:
        """Sizes that came."""
        yield from ({**self.hints, **sizes_at(self.template, case)} for case in self.cases)

    def fixing(self, name: str) -> list[Guard]:
        """The guards that fix a symbol."""
        guards = [guard for guard in self.asked if name in guard.expression.names]
        return [guard for guard in guards if guard.relation is Relation.EQUAL] or guards

    def with_fixed(self, pinned: Sizes) -> FreeGraph:
        """The graph with integers for some of the symbols."""
        if not pinned:
            return self
        template = _with_sizes(self.template, pinned)
        return FreeGraph.of(self.programs, template, self.case, self.cases, self.atomic)

    def at(self, sizes: Sizes) -> FreeGraph:
        """The graph made at other sizes.  Raises ``QuantglowError``."""
        ones = {name: size for name, size in sizes.items() if size < SMALLEST}
        template = _with_sizes(self.template, ones)
        return FreeGraph.of(self.programs, template, self.case_at(sizes), atomic=self.atomic)

    def case_at(self, sizes: Sizes) -> Case:
        """The case of some sizes."""
        case = case_with(self.template, dict(sizes), self.case.values)
        return replace(case, late=self.late_shapes(sizes))

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model takes some sizes."""
        with suppress(QuantglowError):
            case = self.case_at(sizes)
            self.programs.signature.check(case.shape_map)
            self.programs.graph_at(case)
            return True
        return False

    @property
    def checked(self) -> bytes:
        """The ONNX model.  Raises ``CannotStayFreeError`` unless it computes what the model does
        where guards do not hold."""
        comparison = ShapeComparison(self)
        for sizes in self.probes():
            comparison.look_at(sizes)
        return self.exported

    def core(self, results: Mapping[str, TensorType]) -> bytes:
        """The model with some results as inputs, and without the types that ends declare, which not
        all arrays can have.

        Results that the graph does not compute are inputs that nothing reads.  The operands of the
        others are outputs, too, by ``_operand_names``.
        """
        late = {name: Input(name=name, tensor=kind) for name, kind in results.items()}
        operands: list[tuple[str, Node]] = []

        def put_in(node: Node) -> Node:
            if node.name not in late:
                return node
            late[node.name] = Input(name=node.name, tensor=node.type)
            operands.extend(zip(_operand_names(node), node.operands, strict=True))
            return late[node.name]

        graph = self.graph.rebuild(put_in)
        # A result that the graph knows, as it has no elements, may be an output, too.
        ends = [(name, late.get(name, node)) for name, node in graph.outputs]
        inputs, outputs = (*graph.inputs, *late.values()), (*ends, *operands)
        return _write(replace(graph, inputs=inputs, outputs=outputs, declared={}))

    def probes(self) -> Iterator[Sizes]:
        """Sizes that came, others near those of the case, and smaller ones; results may have no
        rows."""
        yield from self.came
        yield dict.fromkeys(self.hints, 1)
        yield {name: hint + 1 + i for i, (name, hint) in enumerate(self.hints.items())}
        yield {name: 2 * hint + 1 for name, hint in self.hints.items()}
        for name, hint in self.hints.items():
            smallest = (0, 1) if name in self.late else (1,)
            for size in (*smallest, *_others(hint)):
                yield {**self.hints, name: size}

    def refusal(
        self, sizes: Sizes, broken: Sequence[Guard], different: Sequence[Node], why: str
    ) -> CannotStayFreeError:
        """The error for a model that computes something else at some sizes."""
        names = {name for guard in broken for name in guard.expression.names} or set(sizes)
        shown = ", ".join(f"{name} = {sizes[name]}" for name in sorted(names) if name in sizes)
        return CannotStayFreeError(
            f"the ONNX form of the model differs from shape to shape, as for {shown}, so its "
            f"dimensions cannot stay free: {why:.300}. {self.remedy(names)}",
            self.blame(broken, different),
        )


@dataclass
class ShapeComparison:
    """A free graph beside those of some sizes.

    ``open_guards``: those of which no shape that fails them was looked at; ``proven``: guards of
    other graphs, wherever which hold the graph computes the same.
    """

    free: FreeGraph
    runs: int = 0
    proven: list[Guards] = field(default_factory=list)
    _sessions: dict[bool, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open_guards = list(self.free.asked)

    @cached_property
    def results(self) -> dict[str, Node]:
        """The results that decide sizes, by name."""
        return {source.node.name: source.node for source in self.free.late.values()}

    def session(self, optimize: bool) -> Session:
        """The exported model, whose results that decide sizes are inputs."""
        if optimize not in self._sessions:
            results = {name: node.type for name, node in self.results.items()}
            self._sessions[optimize] = open_session(self.free.core(results), optimize=optimize)
        return self._sessions[optimize]

    def look_at(self, sizes: Sizes) -> None:
        """Compare at sizes at which an open guard fails.  Raises ``CannotStayFreeError``."""
        broken = [guard for guard in self.open_guards if not guard.holds(sizes)]
        is_small = min(sizes.values(), default=2) <= 1
        if not broken and not is_small:
            return
        if is_small or not any(guards.hold(sizes) for guards in self.proven):
            try:
                special = self.free.at(sizes)
            except QuantglowError:
                return
            different = self.different(special, sizes, is_small)
            if different and self.runs == MOST_RUNS:
                return
            if different:
                self.run(special, sizes, broken, different)
        self.open_guards = [guard for guard in self.open_guards if guard not in broken]

    def different(self, special: FreeGraph, sizes: Sizes, is_small: bool) -> list[Node]:
        """The nodes at which the graph made at some sizes may compute something else."""
        if not is_small and not differences(self.free.graph, special.graph):
            self.proven.append(special.guards)
            return []
        different = differences(self.free.graph, special.graph, sizes)
        # A node of the model as it is is right, where sizes of 1 give it another definition, too.
        is_right = _have_types_of(self.free.graph, special.graph, sizes)
        is_right = is_right and all(isinstance(node, External) for node in different)
        return [] if is_right else different

    def run(
        self,
        special: FreeGraph,
        sizes: Sizes,
        broken: Sequence[Guard],
        different: Sequence[Node],
    ) -> None:
        """Run both models on the same arrays.  Raises ``CannotStayFreeError`` where they differ."""
        results = {name: _at(node.type, sizes) for name, node in self.results.items()}
        if any(math.prod(kind.fixed_shape) > MOST_ELEMENTS for kind in results.values()):
            raise self.free.refusal(sizes, broken, different, "a result is too large to be drawn")
        # Not optimized without elements: onnxruntime's QLinearMatMul of matrices without a common
        # size gives what its memory had before.
        has_elements = 0 not in sizes.values()
        try:
            session = open_session(special.core(results), optimize=has_elements)
            inputs = {x.name: _at(x.type, sizes) for x in special.graph.inputs}
            feeds = draw_feeds({**inputs, **results}, self.free.case, results)
            names = self.compared(special)
            expected = session.run(feeds, names)
        except QuantglowError:
            return
        self.runs += 1
        try:
            outputs = self.session(has_elements).run(feeds, names)
        except QuantglowError as error:
            raise self.free.refusal(sizes, broken, different, str(error)) from error
        if not all(map(is_alike, outputs, expected)):
            raise self.free.refusal(sizes, broken, different, "the results differ")

    def compared(self, special: FreeGraph) -> list[str]:
        """The outputs of both models: those of the graph, and what decides sizes in both."""
        names = [name for name, _ in special.graph.outputs]
        for name, node in self.results.items():
            if name in special.graph.names:
                other = set(_operand_names(special.graph.by_name(name)))
                names += [operand for operand in _operand_names(node) if operand in other]
        return list(dict.fromkeys(names))


def _have_types_of(one: Graph, other: Graph, sizes: Sizes) -> bool:
    """Whether the outputs of two graphs have the same types at some sizes."""
    pairs = zip(one.outputs, other.outputs, strict=True)
    return all(_at(x.type, sizes) == _at(y.type, sizes) for (_, x), (_, y) in pairs)


def _operand_names(node: Node) -> list[str]:
    """Names of the operands of a node as outputs."""
    return [f"{node.name}:{i}" for i in range(len(node.operands))]


def _with_sizes(template: Template, sizes: Sizes) -> Template:
    """A template with integers for some symbols."""
    return tuple(
        (name, tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims))
        for name, dims in template
    )


def sizes_at(template: Template, case: Case) -> dict[str, int]:
    """The sizes of the symbols of a template in a case, those of 1, too."""
    shapes = case.shape_map
    pairs = [p for name, dims in template for p in zip(dims, shapes[name], strict=True)]
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def _write(graph: Graph, signature: Signature | None = None) -> bytes:
    """The graph as an ONNX model; ``signature`` names its dimensions.  Raises ``ModelError``."""
    # Imported here because a process that runs a saved model does not need onnx.
    from quantglow.export.onnx.model import export_onnx

    return bytes(export_onnx(graph, signature=signature).SerializeToString())


def _at(kind: TensorType, sizes: Sizes) -> TensorType:
    """The type at sizes of its symbols; a symbol without a size stays."""
    shape = (
        d.expression.at(sizes) if isinstance(d, Size) and d.expression.names <= sizes.keys() else d
        for d in kind.shape
    )
    return kind.with_shape(tuple(shape))


def _others(size: int) -> tuple[int, ...]:
    """Other sizes, near and far."""
    sizes = (size + 1, 2 * size, 3 * size, size // 2, size - 1, 2 * size + 1, 3, 2)
    return tuple(n for n in dict.fromkeys(sizes) if n > 0 and n != size)
