"""Integers of the exported QDQ model in onnxruntime beside quantglow's, and the error of both.

``python -m tools qdq_agreement [NAME ...]`` prints a row for each network and each level of
onnxruntime's optimizations: share of differing integers and largest difference in steps, counted
over int8 values.  *local*: every operator alone, on the interpreter's operands; operators that
differ are listed, the most frequent first.  *network*: every value of one run of the model, where a
differing integer changes later ones.  *output*: integers behind the outputs.  (With every value an
output, onnxruntime fuses fewer operators.)  *SQNR*: outputs against float onnxruntime, over all
samples, and the mean difference in dB by sample with its standard error.

``--model m.qgm --samples s.npz`` takes a saved int8 model and its inputs; ``--source m.onnx`` adds
the SQNR.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import quantglow as qg
from benchmarks.networks.registry import TABLE, network
from quantglow.evaluation.metrics import sqnr_db
from quantglow.export.onnx.model import export_onnx
from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Dequantize, Quantize
from quantglow.ir.ops.arithmetic import dequantize, is_integer
from quantglow.ir.ops.arithmetic import quantize as to_integers
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize
from quantglow.transforms.float import optimize

Array = NDArray[Any]
Feeds = Mapping[str, Array]

LEVELS = {
    "optimized": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "as written": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
CALIBRATION, TEST = 8, 20
LISTED = 12
"""Maximum number of operators that are listed."""


@dataclass(frozen=True)
class Agreement:
    """Number of integers that differ, of ``count``, and the largest difference in ``steps``."""

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
    def of(expected: Array, actual: Array) -> Agreement:
        """The agreement of two integer arrays.  Raises ``ValueError`` where shapes differ."""
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            raise ValueError(f"{actual.dtype}{actual.shape} is no {expected.dtype}{expected.shape}")
        steps = np.abs(expected.astype(np.int64) - actual.astype(np.int64))
        return Agreement(int(np.count_nonzero(steps)), steps.size, int(steps.max(initial=0)))


def run_onnx(
    model: onnx.ModelProto,
    feeds: Feeds,
    level: ort.GraphOptimizationLevel = LEVELS["optimized"],
) -> list[Array]:
    """Outputs of onnxruntime, one thread, without instructions that saturate in 16 bits."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[Any] = list(session.run(None, dict(feeds)))
    return outputs


def integer_nodes(graph: Graph) -> list[Node]:
    """Computed values that are stored in integers."""
    return [node for node in graph.compute_nodes() if is_integer(node.type)]


def network_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """Agreement of each integer value in a run of the whole model, by node name."""
    nodes = integer_nodes(graph)
    watched = replace(graph, outputs=tuple(watched_output(node) for node in nodes))
    model = export_onnx(watched)
    total = {node.name: Agreement() for node in nodes}
    for feed in feeds:
        outputs = zip(interpret(watched, feed), run_onnx(model, feed, level), strict=True)
        for node, (expected, value) in zip(nodes, outputs, strict=True):
            total[node.name] += steps_apart(node, expected, value)
    return total


def output_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """Agreement of the integers behind the dequantized outputs, by output name."""
    stored = {name: node.x for name, node in graph.outputs if isinstance(node, Dequantize)}
    model = export_onnx(graph)
    total = dict.fromkeys(stored, Agreement())
    for feed in feeds:
        outputs = zip(interpret(graph, feed), run_onnx(model, feed, level), strict=True)
        for (name, _), (expected, value) in zip(graph.outputs, outputs, strict=True):
            if name in stored:
                total[name] += steps_apart(stored[name], expected, value)
    return total


def local_agreement(
    graph: Graph, feeds: Sequence[Feeds], level: ort.GraphOptimizationLevel = LEVELS["optimized"]
) -> dict[str, Agreement]:
    """Agreement of each node alone, on the interpreter's operands, by node name."""
    nodes = integer_nodes(graph)
    total = {node.name: Agreement() for node in nodes}
    for feed in feeds:
        values: dict[Node, Array] = {}
        interpret(graph, feed, [values.__setitem__])
        for node in nodes:
            operands = [o for o in node.operands if not isinstance(o, Constant)]
            ours = {o.name: real(values[o], o) for o in operands}
            (actual,) = run_onnx(export_onnx(graph_of_one(node)), ours, level)
            total[node.name] += steps_apart(node, real(values[node], node), actual)
    return total


def graph_of_one(node: Node) -> Graph:
    """The node between float inputs and a float output, in place of its computed operands.

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
    """The real value, in float32, of an integer or float value of the node."""
    return dequantize(value, node.type.params) if is_integer(node.type) else value


def steps_apart(node: Node, expected: Array, actual: Array) -> Agreement:
    """The agreement of the integers behind two dequantized values."""
    return Agreement.of(*(to_integers(a, node.type.element) for a in (expected, actual)))


def int8_graph(
    model: Path, shapes: Mapping[str, tuple[int, ...]], calibration: Sequence[Feeds]
) -> Graph:
    """The network in int8 up to its outputs."""
    graph = optimize(import_model(model, dict(shapes)))
    profiled = profile(graph, list(calibration), progress=False)
    return quantize(graph, profiled, QuantizationConfig(quantize_output=True))


def total(agreements: Mapping[str, Agreement]) -> Agreement:
    return sum(agreements.values(), Agreement())


MEASURES = {
    "local": local_agreement,
    "network": network_agreement,
    "output": output_agreement,
}


def report(title: str, graph: Graph, feeds: Sequence[Feeds], expected: Sequence[Array]) -> None:
    """Print the rows of one network; ``expected``: the first output of float, empty if unknown."""
    for label, level in LEVELS.items():
        for kind, measure in MEASURES.items():
            measurement = measure(graph, feeds[:1], level)
            whole = total(measurement)
            print(
                f"{title:20} {label:11} {kind:8} {whole.rate:10.2e} "
                f"{whole.differing:8} of {whole.count:9}  {whole.steps:4} step(s)"
            )
            if kind == "local":
                list_operators(graph, measurement)
    if expected:
        print_accuracy(title, graph, feeds, expected)


def list_operators(graph: Graph, actual: Mapping[str, Agreement]) -> None:
    """Print the operators that differ when they run alone."""
    differing = [(item.rate, name) for name, item in actual.items() if item.differing]
    for rate, name in sorted(differing, reverse=True)[:LISTED]:
        print(f"{'':21}{rate:.1e} {actual[name].steps} step(s) {graph.by_name(name)!r}")


def print_accuracy(
    title: str, graph: Graph, feeds: Sequence[Feeds], expected: Sequence[Array]
) -> None:
    """Print the SQNR of quantglow and of the exported model."""
    model = export_onnx(graph)
    ours = [interpret(graph, feed)[0] for feed in feeds]
    print(f"{title:20} {'quantglow':11} SQNR     {sqnr_of(expected, ours):6.2f} dB")
    for label, level in LEVELS.items():
        theirs = [run_onnx(model, feed, level)[0] for feed in feeds]
        gains = [
            sqnr_of([e], [t]) - sqnr_of([e], [o])
            for e, t, o in zip(expected, theirs, ours, strict=True)
        ]
        known = np.array([gain for gain in gains if np.isfinite(gain)])
        error = known.std() / np.sqrt(max(known.size, 1))
        print(
            f"{title:20} {label:11} SQNR     {sqnr_of(expected, theirs):6.2f} dB, "
            f"by sample {known.mean():+.2f} +- {error:.2f} dB"
        )


def sqnr_of(expected: Sequence[Array], actual: Sequence[Array]) -> float:
    return sqnr_db(np.stack(expected), np.stack(actual))


def of_network(name: str) -> None:
    """The rows of a benchmark network."""
    chosen = network(name)
    feeds = chosen.feeds(TEST, seed=1)
    source = onnx.load(chosen.path())
    shapes = {chosen.input_name: chosen.input_shape()}
    int8 = int8_graph(chosen.path(), shapes, chosen.feeds(CALIBRATION))
    report(name, int8, feeds, [run_onnx(source, feed)[0] for feed in feeds])


def of_file(model: str, samples: str, source: str | None) -> None:
    """The rows of a saved model."""
    loaded: Any = qg.load(model, num_threads=1)
    graph = getattr(loaded, "head", loaded).graph
    arrays = np.load(samples)
    (count,) = {len(arrays[name]) for name in arrays.files}
    feeds = [{name: arrays[name][i : i + 1] for name in arrays.files} for i in range(count)]
    expected = [run_onnx(onnx.load(source), feed)[0] for feed in feeds] if source else []
    report(model, graph, feeds, expected)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", help="benchmark networks; default: all of the table")
    command.add_argument("--model", help="a saved int8 model (.qgm) at one shape")
    command.add_argument("--samples", help=".npz with an array [count, ...] for each input")
    command.add_argument("--source", help="its float ONNX file")


def run(options: argparse.Namespace) -> int:
    """Print the rows of a saved model, or of benchmark networks."""
    if options.model:
        of_file(options.model, options.samples, options.source)
        return 0
    for name in options.names or TABLE:
        of_network(name)
    return 0
