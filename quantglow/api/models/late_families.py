"""Families of models in which nodes decide sizes: each sample leads to a graph of its own.

The sizes are those that the float model leads to: nodes that decide sizes run once for a sample,
with what comes before them, and their results are recorded with it.  Every graph of the sample,
float or int8, then has these sizes, and every run of it takes the recorded results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.interpreter import RecordedFeeds, interpret
from quantglow.ir.graph.family import Case, Family
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node, ancestors
from quantglow.ir.graph.signature import Shapes
from quantglow.ir.ops.external import External
from quantglow.ir.symbolic.expression import LARGEST, SMALLEST
from quantglow.ir.symbolic.guards import Guards
from quantglow.ir.symbolic.size import find_guards
from quantglow.ort.session import run_model
from quantglow.profiling.samples.feeds import hash_feeds
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import UnsupportedOpError
from quantglow.transforms.bind_sizes import bind_sizes
from quantglow.transforms.size_sources import (
    SizeSource,
    are_sizes_alike,
    fixing_guards,
    late_sizes,
)

Results = Mapping[str, Array]

MOST_GRAPHS = 16
"""Maximum number of graphs with late sizes that are held for a case of the inputs, those made last.
Their equal constants share memory."""

MOST_RECORDED = 64
"""Maximum number of samples whose results are at hand, those that were asked for last: a sample is
read again by each stage of the pipeline."""


@dataclass(frozen=True, eq=False)
class LateGraph:
    """A graph with late sizes, and the shapes of results for which it was made."""

    graph: Graph
    shapes: Shapes

    @cached_property
    def late(self) -> dict[str, SizeSource]:
        """Its late sizes by symbol."""
        return late_sizes(self.graph)

    @cached_property
    def guards(self) -> Guards | None:
        """The guards of its sizes, None where all are plain."""
        return find_guards(late.node.type.shape[late.axis] for late in self.late.values())

    def sizes_at(self, shapes: Shapes) -> dict[str, int] | None:
        """The sizes of symbols, given shapes of results; None where these have another graph."""
        if shapes.keys() != self.shapes.keys() or not all(
            are_sizes_alike(shape, shapes[name]) for name, shape in self.shapes.items()
        ):
            return None
        decided = [late for late in self.late.values() if late.node.name in shapes]
        sizes = {late.symbol: shapes[late.node.name][late.axis] for late in decided}
        if not all(SMALLEST <= size <= LARGEST for size in sizes.values()):
            return None
        asked = () if self.guards is None else self.guards.recorded
        holds = all(g.holds(sizes) for g in asked if g.expression.names <= sizes.keys())
        return sizes if holds else None

    def bind(self, shapes: Shapes) -> Graph:
        """The graph at shapes of results that it serves."""
        sizes = self.sizes_at(shapes)
        assert sizes is not None, "a graph is bound to sizes that it serves"
        return bind_sizes(self.graph, sizes)

    def ready(self, recorded: Results) -> list[External]:
        """The nodes whose results decide sizes, or belong to such ones, where what they read
        depends on nothing that is not recorded."""
        pending = {s.symbol: s.node for s in self.late.values() if s.node.name not in recorded}
        externals = [node for node in self.graph.nodes if isinstance(node, External)]
        calls = {
            (node.model, node.args)
            for node in externals
            if node in pending.values()
            and all(pending.keys().isdisjoint(n.symbols) for n in ancestors(node.operands))
        }
        return [node for node in externals if (node.model, node.args) in calls]


@dataclass(eq=False)
class LateFamily(Family):
    """A family whose ``make`` gives graphs with late sizes; those of its cases have plain ones."""

    _late_graphs: dict[Case, list[LateGraph]] = field(default_factory=dict)
    _recorded: dict[bytes, Results] = field(default_factory=dict)

    @property
    def is_single(self) -> bool:
        """False: each late size has a graph."""
        return False

    @property
    def is_of_one_size(self) -> bool:
        """Whether sizes decide its graphs: those that were made serve one late size only, where the
        model would take others, too."""
        graphs = [g for graphs in self._late_graphs.values() for g in graphs if g.guards]
        demanded = {name for g in graphs if g.guards for name in g.guards.revised}
        return any(g.guards and fixing_guards(g.guards, g.late.keys() - demanded) for g in graphs)

    def case_of(self, feeds: Mapping[str, Array]) -> Case:
        """The case of some arrays, with the shapes of results that decide sizes."""
        results = self._results(super().case_of(feeds), feeds)
        return replace(super().case_of(feeds), late=_shapes_of(results))

    def _make_fixed(self, case: Case) -> Graph:
        return self._late_graph(case).bind(dict(case.late))

    def _late_graph(self, case: Case) -> LateGraph:
        """A graph that serves a case, made if there is none."""
        shapes = dict(case.late)
        if any(size > LARGEST for shape in shapes.values() for size in shape):
            raise UnsupportedOpError([f"results have more than {LARGEST} rows: {shapes}"])
        graphs = self._late_graphs.setdefault(replace(case, late=()), [])
        for candidate in graphs:
            if candidate.sizes_at(shapes) is not None:
                return candidate
        graphs.append(LateGraph(self._arrays.graph(self.make(case)), shapes))
        del graphs[:-MOST_GRAPHS]
        return graphs[-1]

    def _results(self, case: Case, feeds: Mapping[str, Array]) -> Results:
        """The results that decide sizes; those of feeds are recorded there."""
        if isinstance(feeds, RecordedFeeds) and feeds.results:
            return feeds.results
        key = hash_feeds(feeds)
        results = self._recorded.pop(key, None)
        if results is None:
            results = self._run(case, feeds)
        self._recorded[key] = results  # the last one
        if len(self._recorded) > MOST_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        if isinstance(feeds, RecordedFeeds):
            feeds.results = results
        return results

    def _run(self, case: Case, feeds: Mapping[str, Array]) -> Results:
        """The results that decide sizes, by runs of what comes before each of them."""
        results: dict[str, Array] = {}
        while True:
            here = replace(case, late=_shapes_of(results))
            late = self._late_graph(here)
            ready = late.ready(results)
            if not ready:
                return results
            graph = late.bind(dict(here.late))
            results |= _run_nodes(graph, ready, RecordedFeeds(feeds, results))


def bind_results(graph: Graph, shapes: Shapes) -> Graph:
    """The graph at the shapes of results for which it was made."""
    return LateGraph(graph, shapes).bind(shapes)


def _run_nodes(graph: Graph, nodes: Sequence[Node], feeds: RecordedFeeds) -> dict[str, Array]:
    """The results of nodes of other runtimes, by name; each operator runs once.  Raises
    ``WrongResultError``."""
    bound = [graph.by_name(node.name) for node in nodes]
    operands = dict.fromkeys(operand for node in bound for operand in node.operands)
    stem = replace(graph, outputs=tuple((node.name, node) for node in operands))
    with np.errstate(all="ignore"):
        values = dict(zip(operands, interpret(stem, feeds), strict=True))
    calls: dict[tuple[bytes, tuple[Node, ...]], list[Array]] = {}
    results = {}
    for node in bound:
        assert isinstance(node, External)
        call = node.model, node.args
        if call not in calls:
            calls[call] = run_model(node.model, tuple(values[arg] for arg in node.args))
        results[node.name] = node.checked(calls[call][node.output])
    return results


def _shapes_of(results: Results) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes of results by name, in order."""
    return tuple(sorted((name, array.shape) for name, array in results.items()))
