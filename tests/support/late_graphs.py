"""Symbolic graphs of models in which results decide sizes: their sizes in a run, int8 by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from quantglow.importer.onnx import open_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.family import Case, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.symbolic.size import symbol_name, symbols
from quantglow.profiling import Range
from quantglow.quantization.decisions import Decisions
from quantglow.quantization.plan.params import activation_element
from quantglow.runtime.programs.symbolic_graphs import case_template, fitting, free_case
from quantglow.support.arrays import Array
from quantglow.transforms.bind_sizes import bind_sizes
from quantglow.transforms.float import optimize
from quantglow.transforms.size_sources import late_sizes

Feeds = Mapping[str, Array]


def symbolic_graph(model: onnx.ModelProto, feeds: Feeds) -> Graph:
    """The optimized float graph of a model to its end, whose sizes of inputs and of results are
    symbols with those of the feeds as hints."""
    source = open_model(model)
    case = Case.of({name: array.shape for name, array in feeds.items()})
    template = case_template(source.signature, case)
    sizes, _ = symbols(fitting(template, case) or {})
    return optimize(source.at(free_case(template, sizes, case.values), LateResults.SYMBOLIC))


def bound(graph: Graph, feeds: Feeds) -> Graph:
    """The graph at all sizes that it has in a run."""
    values = {
        name: size
        for x in graph.inputs
        for dim, size in zip(x.type.shape, feeds[x.name].shape, strict=True)
        if (name := symbol_name(dim)) is not None
    }
    for late in late_sizes(graph).values():
        part = bind_sizes(Graph(graph.inputs, ((late.node.name, late.node),)), values)
        (result,) = interpret(part, {x.name: feeds[x.name] for x in part.inputs})
        values[late.symbol] = result.shape[late.axis]
    return bind_sizes(graph, values)


def decide_by_hand(graph: Graph, samples: Sequence[Feeds]) -> Decisions:
    """Decisions for all that may be in int8, by the ranges of some samples; weights are rounded
    where they are applied."""
    extremes: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def note(node: Node, value: Array) -> None:
        if value.dtype == np.float32 and value.size:
            low, high = extremes[node.name]
            extremes[node.name] = [min(low, float(value.min())), max(high, float(value.max()))]

    for feeds in samples:
        interpret(bound(graph, feeds), feeds, [note])
    elements = {name: activation_element(Range(*ends)) for name, ends in extremes.items()}
    names = frozenset(node.name for node in graph.compute_nodes())
    return Decisions(reasons={}, int8=names, element_types=elements, weights={})
