"""``interpret``: the outputs of a graph by the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping

from quantglow import interpreter
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.signature import entering, leaving
from quantglow.runtime.programs.feeds import TensorInfo, check_feeds
from quantglow.support.arguments import (
    instance,
    options_named,
)
from quantglow.support.arrays import Array


@options_named
def interpret(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a graph by the reference interpreter, in the order of its outputs.

    Arrays have the types that the model declares, as in ``CompiledModel.run``.
    """
    instance("graph", graph, Graph, "a Graph, as import_model gives it")
    ends = graph.signature
    input_feeds = check_feeds(feeds, lambda: map(TensorInfo.of, ends.inputs))
    return leaving(ends.outputs, interpreter.interpret(graph, entering(ends.inputs, input_feeds)))
