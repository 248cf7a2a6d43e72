"""Counter of multiply-accumulates: observes a run of a model, or reads the types of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.evaluation.int8_share import FIRST_SAMPLE, Int8Share
from quantglow.interpreter import compute_value
from quantglow.interpreter.branches import find_branches, listen_to_taken
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.external import External
from quantglow.ir.ops.groupwise import GroupedMatMul
from quantglow.ir.ops.loop import Loop
from quantglow.ir.ops.work import count_macs
from quantglow.ort.products import count_products, may_have_products
from quantglow.support.arrays import Array
from quantglow.support.observing import observing


@dataclass
class MacCounter:
    """Multiply-accumulates so far; an ``Observer`` of a run of a model."""

    int8: int = 0
    total: int = 0

    def share(self, basis: str = FIRST_SAMPLE) -> Int8Share:
        """The share of int8."""
        return Int8Share(self.int8, self.total, basis)

    def saw_graph(self, graph: Graph, feeds: Mapping[str, Array]) -> None:
        """Count the products of a graph.

        It is interpreted where values decide which of them run: in branches, and in loops that a
        condition ends.
        """
        if _depends_on_values(graph):
            with observing(None):
                self._interpret(graph, feeds)
        else:
            self.add_graph(graph)

    def saw_model(self, model: bytes, feeds: Mapping[str, Any]) -> None:
        """Count the products of an ONNX model, none of which is int8."""
        self.total += count_products(model, feeds)

    def add_graph(self, graph: Graph, times: int = 1) -> None:
        """Count the products of a graph that runs so many times, by its types."""
        bodies: set[Graph] = set()
        for node in graph.nodes:
            if not isinstance(node, Loop):
                self._add(node, times)
            elif node.body not in bodies:
                bodies.add(node.body)
                self.add_graph(node.body, times * int(node.trips))

    def _add(self, node: Node, times: int = 1) -> None:
        macs = times * int(count_macs(node))
        self.total += macs
        self.int8 += macs if macs and is_int8(node) else 0

    def _interpret(self, graph: Graph, feeds: Mapping[str, Array]) -> None:
        """Count the products of a run in the interpreter, those of branches that it takes."""
        loops: dict[Node, MacCounter] = {}
        bodies: set[Graph] = set()

        def evaluate(node: Node, operands: Sequence[Array]) -> Array:
            if not isinstance(node, Loop) or node.body in bodies:
                return compute_value(node, operands, feeds)
            bodies.add(node.body)
            loops[node] = MacCounter()
            return node.watched(operands, loops[node].trip_of(node.body))

        def listen(node: Node, _: Array) -> None:
            if (inner := loops.get(node)) is not None:
                self.int8 += inner.int8
                self.total += inner.total
            self._add(node)

        branch_listener = listen_to_taken(graph, listen)
        for node, value in Execution(graph, [node for _, node in graph.outputs], evaluate):
            branch_listener(node, value)

    def trip_of(self, body: Graph) -> Callable[[Mapping[Node, Array]], None]:
        """A function that counts the products of a trip, given its values."""

        def watch(values: Mapping[Node, Array]) -> None:
            bodies: set[Graph] = set()
            for node in body.nodes:
                if not isinstance(node, Loop):
                    self._add(node)
                elif node.body not in bodies:
                    bodies.add(node.body)
                    node.watched([values[x] for x in node.operands], self.trip_of(node.body))

        return watch


def count_by_types(graph: Graph, basis: str) -> Int8Share | None:
    """The share of a graph whose types tell all; None where onnxruntime runs operators of it that
    may have products, and where values or late sizes decide what runs."""
    externals = (node for node in graph.every_node() if isinstance(node, External))
    if graph.symbols or _depends_on_values(graph):
        return None
    if any(may_have_products(node.op_type) for node in externals):
        return None
    counter = MacCounter()
    counter.add_graph(graph)
    return counter.share(basis)


def count_by_run(run: Callable[[], object]) -> Int8Share:
    """The share in a run of a model.  Raises as that does."""
    counter = MacCounter()
    with observing(counter):
        run()
    return counter.share()


def is_int8(node: Node) -> bool:
    """Whether both factors of a product are integers of 8 bits or fewer."""
    if isinstance(node, GroupedMatMul):
        factors: tuple[Node, ...] = (node.x,)
    elif isinstance(node, Contraction):
        factors = node.x, node.w
    else:
        factors = node.operands[:2]
    return all(not x.type.dtype.is_float and x.type.dtype.nbytes == 1 for x in factors)


def _depends_on_values(graph: Graph) -> bool:
    """Whether values decide which products of a graph run."""
    if any(isinstance(node, Loop) and node.conditional for node in graph.every_node()):
        return True
    return any(count_macs(node) != 0 for branch in find_branches(graph) for node in branch.nodes)
