"""The table of ONNX's operators: compiled in float, compiled in int8, or run by onnxruntime.

The table is found by trying.  ONNX's own node tests (``onnx.backend.test``) are imported, with
operands that must be constant (weights, axes, shapes) as initializers.  For int8 they are quantized
between other int8 operators, on the data of the test.  Element types that the graph does not hold
(float64, uint32, strings, …) are left out.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantglow.api.import_model import import_model
from quantglow.api.models import families as models
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Gemm, LeakyRelu, Reshape
from quantglow.ir.types import DType
from quantglow.profiling import profile
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.support.errors import (
    CalibrationError,
    QuantglowError,
    UndecidedError,
    UnsupportedOpError,
)
from quantglow.transforms import float as passes
from tools import limits
from tools.conformance import cases

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "operators.md"
BEGIN, END = "<!-- operators: make operators -->\n", "<!-- end of operators -->\n"
HELD = "bool int8 uint8 int16 int32 int64 float32 float16 bfloat16"
WIDTH = 100
SUMS = ("AveragePool", "Conv", "ConvTranspose", "Gemm", "MatMul")
"""Parts of an operator that count as int8 though its other parts are float."""

WIDEST = 64


@dataclass(frozen=True)
class Support:
    """Support of an operator: ``floats`` and ``int8`` are "yes", "some" (forms of it) or "-"."""

    floats: str
    int8: str

    @property
    def fallback(self) -> str:
        """The column of onnxruntime: "-", "the rest" or "yes"."""
        return {"yes": "-", "some": "the rest", "-": "yes"}[self.floats]


@dataclass(frozen=True)
class Form:
    """Graphs of one case, as it is and with all operands but the data constant; and its arrays."""

    graphs: tuple[Graph, ...]
    arrays: Mapping[str, Any]


@cache
def supports() -> dict[str, Support]:
    """Every standard operator with a node test; one with a limit has forms within it."""
    partly = {name for limit in limits.LIMITS for name in limit.operators.split(", ")}
    actual: dict[str, list[Form]] = {}
    for case in cases():
        if (op_type := tested_operator(case)) is not None:
            actual.setdefault(op_type, []).append(tried(case))
    every = {op_type: joined(op_type, forms) for op_type, forms in sorted(actual.items())}
    return {
        op_type: replace(support, floats="some")
        if op_type in partly and support.floats == "-"
        else support
        for op_type, support in every.items()
    }


def tested_operator(case: Any) -> str | None:
    """The operator of a case with one node on tensors that the graph holds."""
    inputs, outputs = case.data_sets[0]
    nodes = case.model.graph.node
    held = all(isinstance(a, np.ndarray | np.generic) for a in (*inputs, *outputs)) and all(
        a.dtype.name in HELD.split() and a.size for a in map(np.asarray, (*inputs, *outputs))
    )
    return nodes[0].op_type if held and len(nodes) == 1 and not nodes[0].domain else None


def tried(case: Any) -> Form:
    """Graphs and arrays of one case."""
    names = [value.name for value in case.model.graph.input]
    graphs = [imported(case, []), imported(case, names[1:])]
    arrays = dict(zip(names, case.data_sets[0][0], strict=False))
    return Form(tuple(graph for graph in graphs if graph is not None), arrays)


def imported(case: Any, known: Sequence[str]) -> Graph | None:
    """The optimized graph of the first result, with ``known`` and other required inputs constant.

    Further results, such as the mean of a normalization, are for training.
    """
    try:
        graph = import_model(with_known(case, known), fallback=False)
        graph = replace(graph, outputs=graph.outputs[:1])
        return graph if models.is_quantized(graph) else passes.optimize(graph)
    except UnsupportedOpError as error:
        asked = re.findall(r"'([^' ]*)' is computed at run time", str(error))
        deciding = error.inputs if isinstance(error, UndecidedError) else ()
        names = [value.name for value in case.model.graph.input]
        more = [n for n in names if n in {*asked, *deciding} and n not in known]
        return imported(case, [*known, *more]) if more else None
    except QuantglowError:
        return None


def with_known(case: Any, names: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value, array in zip(model.graph.input, case.data_sets[0][0], strict=False):
        if value.name in names:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    return model


def in_int8(graph: Graph, arrays: Mapping[str, Any]) -> str:
    """Whether the operator's nodes are int8 after quantization: "yes", "some" of them, or "-".

    It is tried between matrix products, and behind an activation of a product.
    """
    if models.is_quantized(graph):
        return "yes"
    ours = {node.name for node in graph.compute_nodes()}
    if not ours:
        return "-"
    actual = {precisions(between_products(graph, around), ours, arrays) for around in (False, True)}
    return actual.pop() if len(actual) == 1 else "some"


def precisions(graph: Graph, ours: Set[str], arrays: Mapping[str, Any]) -> str:
    feeds = {i.name: np.asarray(arrays[i.name], i.type.dtype.numpy) for i in graph.inputs}
    try:
        profiled = profile(graph, [feeds], progress=False)
    except CalibrationError:
        return "-"  # The case tests NaN or infinity.
    report = quantize_for_all_shapes(graph, profiled).report
    mine = [layer for layer in report.nodes if layer.name in ours]
    int8 = [layer for layer in mine if layer.precision == "int8"]
    if len(int8) == len(mine):
        return "yes"
    return "some" if any(layer.op in SUMS for layer in int8) else "-"


def between_products(graph: Graph, rounded: bool) -> Graph:
    """The graph with matrix products before its float inputs and behind its outputs.

    If ``rounded``, an activation rounds the inputs to integers; without it some operators read the
    float result of a product.
    """
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        new[node] = node.with_operands(operands) if operands else node
        if isinstance(node, Input):
            built = new[node] = product(node, f"{node.name}:before")
            if rounded and built is not node:
                new[node] = LeakyRelu(name=f"{node.name}:kept", x=built, alpha=0.5)
    results = [(name, product(new[node], f"{name}:after")) for name, node in graph.outputs]
    return Graph(graph.inputs, tuple(results), graph.source_hash)


def product(x: Node, stem: str) -> Node:
    """Rows of x, or pieces of long rows, times the unit matrix; x itself if it is not float32."""
    if x.type.dtype is not DType.F32 or x.type.is_empty:
        return x
    width = int(x.type.shape[-1]) if x.type.rank else 1
    width = width if width <= WIDEST else gcd(width, WIDEST)
    flat = Reshape(name=f"{stem}:flat", x=x, shape=(x.type.size // width, width))
    unit = Constant(name=f"{stem}:unit", value=np.eye(width, dtype=np.float32))
    return Reshape(name=f"{stem}:back", x=Gemm(name=stem, x=flat, w=unit), shape=x.type.shape)


def best(actual: Iterable[str]) -> str:
    """The best of several answers; none is asked for after a "yes"."""
    observed = set()
    for kind in actual:
        if kind == "yes":
            return kind
        observed.add(kind)
    return "some" if "some" in observed else "-"


def joined(op_type: str, forms: Sequence[Form]) -> Support:
    """Support of an operator by its forms; int8 is the best of them.

    An operator with an importer is compiled in some form, even if the tests need others.
    """
    floats = {"yes" if form.graphs else "-" for form in forms}
    is_mixed = len(floats) > 1 or (floats == {"-"} and op_type in IMPORTERS)
    int8 = best(in_int8(graph, form.arrays) for form in forms for graph in form.graphs)
    return Support("some" if is_mixed else floats.pop(), int8)


def table(actual: dict[str, Support]) -> Iterator[str]:
    """Lines of Markdown: operators with equal support share a row, the best first."""
    yield "| operators | float | int8 | onnxruntime |\n| --- | --- | --- | --- |\n"
    order = sorted(
        set(actual.values()),
        key=lambda s: tuple(("yes", "some", "-").index(kind) for kind in (s.floats, s.int8)),
    )
    for support in order:
        names = ", ".join(name for name, item in actual.items() if item == support)
        yield f"| {names} | {support.floats} | {support.int8} | {support.fallback} |\n"


def section() -> str:
    """The section of the page."""
    actual = supports()
    compiled = sum(s.floats != "-" for s in actual.values())
    text = (
        f"ONNX has tests for {len(actual)} operators, and {compiled} of them are compiled. "
        'onnxruntime runs the others, and "the rest": forms of an operator that are not compiled. '
        "The column int8 says whether some form of the operator is int8 after quantization if its "
        'neighbours are. "some" means only its products or sums (GRU, LSTM, Attention, LpPool), or '
        "only if it does not directly follow a product (normalizations). Integers and conditions "
        "are always exact. FlexAttention of ai.onnx.preview, which onnxruntime does not have, is "
        "compiled, too."
    )
    texts = (text, limits.classical(), limits.microsoft())
    paragraphs = (textwrap.fill(each, WIDTH) + "\n\n" for each in texts)
    return "".join([*paragraphs, *table(actual), *limits.lines()])


def updated(text: str) -> str:
    """The page with a new section."""
    before, remaining = text.split(BEGIN)
    return before + BEGIN + section() + END + remaining.split(END)[1]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text()))
    return 0
