"""Graphs with free sizes, as they are exported, and whether they hold at other sizes.

Decisions that depend on a symbol are guards of the graph.  Where some do not hold, the graph of
such sizes is compared with this one: by its form, and if that differs by its results in
onnxruntime.  Nodes of the model whose import decided what differs are blamed: they can stay as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.ir.graph.family import Case
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import SMALLEST, symbol
from quantglow.ir.symbolic.guards import Guard, Guards, Relation
from quantglow.ir.symbolic.size import FixedShape, symbols
from quantglow.ort.session import Session, open_session
from quantglow.runtime.exports.equivalence import differences
from quantglow.runtime.programs.symbolic_graphs import Template, case_with, fitting, free_case
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import ModelError, QuantglowError

REMEDY = "Remedy: export one shape, by input_shapes={name: shape}."

MOST_RUNS = 8
"""Maximum number of shapes at which an exported model is run beside the graph of the shape."""

MOST_ROUNDS = 32
"""Maximum number of graphs that are made with more and more nodes as they are."""

NEAR, SHARE = 0.1, 0.9
"""Share of the largest number by which this share of all numbers may differ: a rounding that turns
moves later ones, a wrong size moves all."""

MAGNITUDES = 0.25, 0.5
"""Smallest and largest number, but for its sign, that a model is run on.  Ranges are calibrated at
other sizes: a mean of one number must not leave that of means of many, nor be a few steps."""

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

    ``atomic``: nodes of the model that it has as they are.
    """

    programs: FreeShapes
    template: Template
    case: Case
    hints: Sizes
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
        hints = fitting(template, case) or {}
        sizes, guards = symbols(hints)
        guards.askers, guards.atomic = {}, atomic
        graph = programs.graph_at(free_case(template, sizes, case.values))
        return FreeGraph(programs, template, case, hints, graph, guards, cases, atomic)

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
        return self._write(self.graph)

    def _write(self, graph: Graph) -> bytes:
        # Imported here because a process that runs a saved model does not need onnx.
        from quantglow.export.onnx.model import export_onnx

        model = export_onnx(graph, signature=self.programs.signature)
        return bytes(model.SerializeToString())

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
            if any(map(self.takes, self.elsewhere(name))):
                reasons = self.fixing(name)
                why = str(reasons[0]) if reasons else name
                raise CannotStayFreeError(
                    f"what the model computes from its dimension {name!r} has an ONNX form at "
                    f"one size only, so it cannot stay free ({why}). {REMEDY}",
                    self.blame(reasons),
                )
        return fixed

    def elsewhere(self, name: str) -> Iterator[Sizes]:
        """Sizes at which one symbol has another: cases that came, all sizes alike, since one may be
        the sum of others, and this symbol, alone or with one that may have to be as far off."""
        hint = self.hints[name]
        came = (sizes_at(self.template, case) for case in self.cases)
        yield from (sizes for sizes in came if sizes[name] != hint)
        yield {other: 2 * size for other, size in self.hints.items()}
        yield from ({**self.hints, name: size} for size in _others(hint))
        for other, size in self.hints.items():
            yield {**self.hints, name: hint + 1, other: size + 1}

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
        case = case_with(self.template, dict(sizes), self.case.values)
        ones = {name: size for name, size in sizes.items() if size < SMALLEST}
        template = _with_sizes(self.template, ones)
        return FreeGraph.of(self.programs, template, case, atomic=self.atomic)

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model takes some sizes."""
        with suppress(QuantglowError):
            case = case_with(self.template, dict(sizes), self.case.values)
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

    @property
    def core(self) -> bytes:
        """The model without the types that ends declare, which not all arrays can have."""
        return self._write(replace(self.graph, declared={}))

    def probes(self) -> Iterator[Sizes]:
        """Sizes that came, others near those of the case, and smaller ones."""
        yield from (sizes_at(self.template, case) for case in self.cases)
        yield dict.fromkeys(self.hints, 1)
        yield {name: hint + 1 + i for i, (name, hint) in enumerate(self.hints.items())}
        yield {name: 2 * hint + 1 for name, hint in self.hints.items()}
        for name, hint in self.hints.items():
            for size in (1, *_others(hint)):
                yield {**self.hints, name: size}

    def refusal(
        self, sizes: Sizes, broken: Sequence[Guard], different: Sequence[Node], why: str
    ) -> CannotStayFreeError:
        """The error for a model that computes something else at some sizes."""
        names = {name for guard in broken for name in guard.expression.names} or set(sizes)
        shown = ", ".join(f"{name} = {sizes[name]}" for name in sorted(names) if name in sizes)
        return CannotStayFreeError(
            f"the ONNX form of the model differs from shape to shape, as for {shown}, so its "
            f"dimensions cannot stay free: {why:.300}. {REMEDY}",
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

    def __post_init__(self) -> None:
        self.open_guards = list(self.free.asked)

    @cached_property
    def session(self) -> Session:
        """The exported model."""
        return open_session(self.free.core)

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
        return [] if all(isinstance(node, External) for node in different) else different

    def run(
        self,
        special: FreeGraph,
        sizes: Sizes,
        broken: Sequence[Guard],
        different: Sequence[Node],
    ) -> None:
        """Run both models on the same arrays.  Raises ``CannotStayFreeError`` where they differ."""
        try:
            case = case_with(self.free.template, dict(sizes), self.free.case.values)
            feeds = _zero_feeds(self.free.programs.graph_at(case), self.free.case)
            session = open_session(special.core)
            expected = session.run({name: feeds[name] for name in session.input_names})
        except QuantglowError:
            return
        self.runs += 1
        try:
            results = self.session.run({name: feeds[name] for name in self.session.input_names})
        except QuantglowError as error:
            raise self.free.refusal(sizes, broken, different, str(error)) from error
        if not all(map(_is_alike, results, expected)):
            raise self.free.refusal(sizes, broken, different, "the results differ")


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


def _zero_feeds(graph: Graph, case: Case) -> dict[str, Array]:
    """Arrays for the inputs of a graph: numbers of both signs, indices 0 and 1."""
    rng = np.random.default_rng(0)
    values = dict(case.values or ())

    def array(name: str, shape: FixedShape, dtype: np.dtype[np.generic]) -> Array:
        if name in values:
            return np.array(values[name]).reshape(shape).astype(dtype)
        if dtype.kind == "f":
            return (rng.choice([-1, 1], shape) * rng.uniform(*MAGNITUDES, shape)).astype(dtype)
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)

    return {x.name: array(x.name, x.type.fixed_shape, x.type.dtype.numpy) for x in graph.inputs}


def _others(size: int) -> tuple[int, ...]:
    """Other sizes, near and far."""
    sizes = (size + 1, 2 * size, 3 * size, size // 2, size - 1, 2 * size + 1, 3, 2)
    return tuple(n for n in dict.fromkeys(sizes) if n > 0 and n != size)


def _is_alike(result: Array, expected: Array) -> bool:
    """Whether most numbers are near, and the shapes are equal."""
    if result.shape != expected.shape:
        return False
    one, other = (np.asarray(array, np.float64) for array in (result, expected))
    with np.errstate(invalid="ignore"):
        finite = np.abs(other[np.isfinite(other)])
        near = np.abs(one - other) <= NEAR * finite.max(initial=0) + 1e-6
        near |= (one == other) | (np.isnan(one) & np.isnan(other))
    return bool(near.mean() >= SHARE) if near.size else True
