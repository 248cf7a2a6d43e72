"""How often onnxruntime, running the exported QDQ model, gives other integers than quantglow.

``python -m benchmarks.qdq_agreement [NAME ...]`` prints a row for each network and each level of
onnxruntime's optimizations: share of differing integers and largest difference in steps, counted
over int8 values.  *local*: every operator alone, on the interpreter's operands.  *network*: every
value of one run of the model, where a differing integer makes others differ behind it.  *output*:
what the model gives.  (Watching every value keeps onnxruntime from fusing some operators.)
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
from quantglow.frontend.export.model import export_onnx
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.interpreter import interpret
from quantglow.ops import Dequantize, Quantize
from quantglow.ops.arithmetic import dequantize, is_integer
from quantglow.ops.arithmetic import quantize as to_integers
from quantglow.options import QuantizationConfig
from quantglow.passes import optimize
from quantglow.profiling import profile
from quantglow.quantization import quantize
from quantglow.types import f32

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
    watched = replace(graph, outputs=tuple(watched_output(node) for node in nodes))
    model = export_onnx(watched)
    total = {node.name: Agreement() for node in nodes}
    for feed in feeds:
        outputs = zip(interpret(watched, feed), run_onnx(model, feed, level), strict=True)
        for node, (expected, found) in zip(nodes, outputs, strict=True):
            total[node.name] += steps_apart(node, expected, found)
    return total


def output_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """By output name: the integers behind the dequantized outputs of the model."""
    stored = {name: node.x for name, node in graph.outputs if isinstance(node, Dequantize)}
    model = export_onnx(graph)
    total = dict.fromkeys(stored, Agreement())
    for feed in feeds:
        outputs = zip(interpret(graph, feed), run_onnx(model, feed, level), strict=True)
        for (name, _), (expected, found) in zip(graph.outputs, outputs, strict=True):
            if name in stored:
                total[name] += steps_apart(stored[name], expected, found)
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
            operands = [o for o in node.operands if not isinstance(o, Constant)]
            own = {o.name: real(values[o], o) for o in operands}
            (found,) = run_onnx(export_onnx(graph_of_one(node)), own, level)
            total[node.name] += steps_apart(node, real(values[node], node), found)
    return total


def graph_of_one(node: Node) -> Graph:
    """The node on float inputs instead of computed operands, giving floats.

    An int8 input or output would keep onnxruntime from choosing uint8, for which it has kernels.
    """
    computed = dict.fromkeys(o for o in node.operands if not isinstance(o, Constant))
    inputs = {o: Input(name=o.name, tensor=f32(*o.type.shape)) for o in computed}
    stored = {o: as_integers(i, o) if is_integer(o.type) else i for o, i in inputs.items()}
    alone = node.with_operands(tuple(stored.get(o, o) for o in node.operands))
    return Graph(inputs=tuple(inputs.values()), outputs=(watched_output(alone),))


def as_integers(reals: Node, node: Node) -> Node:
    return Quantize(name=f"{node.name}:q", x=reals, out=node.type.element)


def watched_output(node: Node) -> tuple[str, Node]:
    name = f"{node.name}:watched"
    return name, Dequantize(name=name, x=node)


def real(value: Array, node: Node) -> Array:
    """What a value of the node stands for, in float32."""
    return dequantize(value, node.type.params) if is_integer(node.type) else value


def steps_apart(node: Node, expected: Array, found: Array) -> Agreement:
    """The agreement of the integers behind two dequantized values."""
    return Agreement.of(*(to_integers(a, node.type.element) for a in (expected, found)))


def int8_graph(chosen: Network) -> Graph:
    """The network in int8 up to its outputs."""
    shapes = {chosen.input_name: chosen.input_shape()}
    graph = optimize(import_model(chosen.path(), shapes))
    seen = profile(graph, chosen.feeds(CALIBRATION), progress=False)
    return quantize(graph, seen, QuantizationConfig(quantize_output=True))


def total(agreements: Mapping[str, Agreement]) -> Agreement:
    return sum(agreements.values(), Agreement())


MEASURES = {
    "local": local_agreement,
    "network": network_agreement,
    "output": output_agreement,
}


def report(name: str) -> None:
    """Print the rows of one network, and the operators that differ by more than one step."""
    chosen = network(name)
    graph = int8_graph(chosen)
    feeds = chosen.feeds(1, seed=1)
    for label, level in LEVELS.items():
        for kind, measure in MEASURES.items():
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
