"""How often onnxruntime, running the exported QDQ model, gives other integers than quantglow.

``python -m benchmarks.qdq_agreement [NAME ...]`` prints a row for each network and each level of
onnxruntime's optimizations: share of differing integers and largest difference in steps, counted
over all int8 values.  *local*: every operator alone, on the interpreter's operands.  *network*:
the model as a whole, where one differing integer makes others differ behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.models import TABLE, Network, network
from quantglow.frontend import import_model
from quantglow.frontend.export import export_onnx
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.interpreter import interpret
from quantglow.ops.arithmetic import is_integer
from quantglow.options import QuantizationConfig
from quantglow.passes import optimize
from quantglow.profiling import profile
from quantglow.quantization import quantize

Array = NDArray[Any]
Feeds = Mapping[str, Array]

LEVELS = {
    "optimized": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "as written": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
CALIBRATION = 8


@dataclass(frozen=True)
class Agreement:
    """``differing`` of ``count`` integers are not equal; the worst by ``steps``."""

    differing: int = 0
    count: int = 0
    steps: int = 0

    @property
    def rate(self) -> float:
        return self.differing / max(self.count, 1)

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.differing + other.differing,
            self.count + other.count,
            max(self.steps, other.steps),
        )

    @staticmethod
    def of(expected: Array, found: Array) -> Agreement:
        """The agreement of two integer arrays.  Raises ``ValueError`` where shapes differ."""
        if expected.shape != found.shape or expected.dtype != found.dtype:
            raise ValueError(f"{found.dtype}{found.shape} is no {expected.dtype}{expected.shape}")
        steps = np.abs(expected.astype(np.int64) - found.astype(np.int64))
        return Agreement(int(np.count_nonzero(steps)), steps.size, int(steps.max(initial=0)))


def run_onnx(
    model: onnx.ModelProto,
    feeds: Feeds,
    level: ort.GraphOptimizationLevel = LEVELS["optimized"],
) -> list[Array]:
    """Outputs of onnxruntime, one thread, without the instructions that overflow in 16 bits."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def integer_nodes(graph: Graph) -> list[Node]:
    """Everything computed that is stored in integers."""
    return [node for node in graph.compute_nodes() if is_integer(node.type)]


def network_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """By node name: every integer value of a run of the whole model."""
    nodes = integer_nodes(graph)
    watched = replace(graph, outputs=tuple((node.name, node) for node in nodes))
    model = export_onnx(watched)
    total = {node.name: Agreement() for node in nodes}
    for feed in feeds:
        outputs = zip(interpret(watched, feed), run_onnx(model, feed, level), strict=True)
        for node, (expected, found) in zip(nodes, outputs, strict=True):
            total[node.name] += Agreement.of(expected, found)
    return total


def local_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """By node name: every node alone, fed what the interpreter feeds it."""
    nodes = integer_nodes(graph)
    total = {node.name: Agreement() for node in nodes}
    for feed in feeds:
        values: dict[Node, Array] = {}
        interpret(graph, feed, [values.__setitem__])
        for node in nodes:
            alone = graph_of_one(node)
            own = {o.name: values[o] for o in node.operands if not isinstance(o, Constant)}
            (found,) = run_onnx(export_onnx(alone), own, level)
            total[node.name] += Agreement.of(values[node], found)
    return total


def graph_of_one(node: Node) -> Graph:
    """The node on inputs instead of computed operands."""
    inputs = {
        o: Input(name=o.name, tensor=o.type) for o in node.operands if not isinstance(o, Constant)
    }
    alone = node.with_operands(tuple(inputs.get(o, o) for o in node.operands))
    return Graph(inputs=tuple(inputs.values()), outputs=((node.name, alone),))


def int8_graph(chosen: Network) -> Graph:
    """The network in int8 up to its outputs."""
    shapes = {chosen.input_name: chosen.input_shape()}
    graph = optimize(import_model(chosen.path(), shapes))
    seen = profile(graph, chosen.feeds(CALIBRATION), progress=False)
    return quantize(graph, seen, QuantizationConfig(quantize_output=True))


def total(agreements: Mapping[str, Agreement]) -> Agreement:
    return sum(agreements.values(), Agreement())


def report(name: str) -> None:
    """Print the rows of one network, and the operators that differ by more than one step."""
    chosen = network(name)
    graph = int8_graph(chosen)
    feeds = chosen.feeds(1, seed=1)
    for label, level in LEVELS.items():
        for kind, measure in (("local", local_agreement), ("network", network_agreement)):
            found = measure(graph, feeds, level)
            whole = total(found)
            print(
                f"{name:20} {label:11} {kind:8} {whole.rate:10.2e} "
                f"{whole.differing:8} of {whole.count:9}  {whole.steps:4} step(s)"
            )
            if kind == "local":
                for node, own in found.items():
                    if own.steps > 1:
                        print(f"{'':21}{graph.by_name(node)!r}: {own}")


def main() -> None:
    for name in sys.argv[1:] or TABLE:
        report(name)


if __name__ == "__main__":
    main()
