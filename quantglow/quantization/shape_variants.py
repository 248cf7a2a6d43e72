"""Samples at other shapes than those at which a model is quantized.

If a model leaves dimensions free, one graph of it is quantized: the one for the most frequent
shapes of the data.  Samples of all shapes show the ranges of its values.  So a sample may bring the
graph for its own shapes; if that has the same nodes as the quantized one, each value is computed
there by the node of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.interpreter import RecordedFeeds, results_in
from quantglow.interpreter.stacks import Evaluator
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.profiling.samples.feeds import Feeds
from quantglow.support.arrays import Array

TOLERANCE = 1e-6
"""Maximum difference of equal weights, relative to the largest: other threads sum products with
factors in another order."""


class ShapeVariant(RecordedFeeds):
    """Feeds at other shapes, and the ``graph`` for these."""

    def __init__(self, feeds: Mapping[str, Array], graph: Graph) -> None:
        super().__init__(feeds, results_in(feeds))
        self.graph = graph


def graph_for(feeds: Mapping[str, Array], graph: Graph) -> Graph:
    """The graph that takes the feeds: their own if they are a ``ShapeVariant``, else ``graph``."""
    return feeds.graph if isinstance(feeds, ShapeVariant) else graph


def counterpart(node: Node, feeds: Feeds) -> Node:
    """The node that computes the same value at the shapes of the feeds; a layer gets the weights of
    ``node``.
    """
    if not isinstance(feeds, ShapeVariant):
        return node
    twin: Any = feeds.graph.by_name(node.name)
    if not isinstance(node, Contraction):
        return twin  # type: ignore[no-any-return]
    names = ("activation", "low", "high", *(n for n in ("w", "b") if _is_decided(node, n)))
    return replace(twin, **{name: getattr(node, name) for name in names})  # type: ignore[no-any-return]


class VariantEvaluator(Evaluator):
    """Evaluates nodes of ``graph`` for samples that may be ``ShapeVariant``s."""

    def __init__(
        self,
        graph: Graph,
        samples: Sequence[Feeds],
        constants: Mapping[Node, Array] | None = None,
    ) -> None:
        super().__init__(samples, constants)
        self.graph = graph
        self.variants = samples

    def counterpart(self, node: Node, sample: int) -> Node:
        """The node at the shapes of a sample."""
        return counterpart(node, self.variants[sample])

    def alike(self, sample: int) -> Graph:
        """The graph of a sample."""
        return graph_for(self.variants[sample], self.graph)


def _is_decided(node: Node, name: str) -> bool:
    return getattr(node, name) is None or isinstance(getattr(node, name), Constant)


def at_own_shapes(samples: Sequence[Feeds], change: Callable[[Graph], Graph]) -> list[Feeds]:
    """The samples with each graph of theirs changed, once."""
    graphs = {sample.graph for sample in samples if isinstance(sample, ShapeVariant)}
    changed = {graph: change(graph) for graph in graphs}
    return [
        ShapeVariant(sample, changed[sample.graph]) if isinstance(sample, ShapeVariant) else sample
        for sample in samples
    ]


def share_constants(graph: Graph, other: Graph) -> Graph:
    """The graph with the equal Constants of the other one, so that memory holds weights once."""
    constants = {node.name: node for node in other.nodes if isinstance(node, Constant)}

    def share(node: Node) -> Node:
        twin = constants.get(node.name)
        if twin is None or not isinstance(node, Constant) or node.type != twin.type:
            return node
        return twin if np.array_equal(node.value, twin.value) else node

    return graph.rebuild(share)


def fit(samples: Sequence[Feeds], graph: Graph) -> list[bool]:
    """For each sample whether its graph is ``graph``, or alike."""
    graphs = {graph_for(sample, graph) for sample in samples}
    alike = {other for other in graphs if other is graph or are_alike(graph, other)}
    return [graph_for(sample, graph) in alike for sample in samples]


def are_alike(one: Graph, other: Graph) -> bool:
    """Whether the graphs have the same operators between values of the same names, and layers with
    the same weights: those that a pass scales by the size of an image are not.
    """
    if {node.name for node in one.nodes} != {node.name for node in other.nodes}:
        return False
    return all(_alike(node, other.by_name(node.name)) for node in one.nodes)


def _alike(one: Node, other: Node) -> bool:
    names = [[operand.name for operand in node.operands] for node in (one, other)]
    if type(one) is not type(other) or one.type.element != other.type.element:
        return False
    if not isinstance(one, Contraction):
        return names[0] == names[1]
    pairs = zip(one.operands, other.operands, strict=False)
    return names[0] == names[1] and all(_same(a, b) for a, b in pairs)


def _same(one: Node, other: Node) -> bool:
    """Whether both are equal Constants up to the order of sums, or neither is a Constant."""
    if not (isinstance(one, Constant) and isinstance(other, Constant)):
        return type(one) is type(other)
    if one is other or one.type != other.type or np.array_equal(one.value, other.value):
        return one.type == other.type
    difference = np.abs(np.subtract(one.value, other.value, dtype=np.float64))
    return bool(difference.max() <= TOLERANCE * np.abs(one.value).max())
