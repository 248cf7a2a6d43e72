"""The same case with operators kept in float by type and by name.

The truth is the ONNX file alone: which operators it has, under which names, and which of them reads
an initializer.  Integers of an initializer all of whose readers are excluded, or of a result of an
excluded node, are a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import quantglow as qg
from quantglow.api.models.families import is_quantized
from quantglow.importer.onnx.reading.proto import all_nodes
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops.arithmetic import dequantize
from quantglow.support.arrays import Array
from tests.generators.onnx_models.models import Case

SHARE = 0.2
"""Share of the cases that are judged."""

FEWEST, STEP, TINY = 64, 1 / 120, 1e-30
"""Elements of the smallest initializers whose numbers tell them from others, the largest difference
that rounding to int8 makes, as a share of the largest number, and a divisor instead of 0."""

PRODUCTS = {"Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Gemm", "MatMul"}
PRODUCTS |= {"GRU", "LSTM", "RNN"}
"""Operators that are int8 wherever they may be, whatever is around them."""


def scope_difference(case: Case) -> str:
    """The difference of a part of the cases in words, or an empty text."""
    rng = np.random.default_rng(len(case.model.SerializeToString()) + 2)
    return judged(case, rng) if rng.random() < SHARE else ""


def judged(case: Case, rng: np.random.Generator) -> str:
    """The first integer that a drawn scope excludes, or product that it leaves out; an empty text
    if there is none."""
    graph = qg.import_model(case.model, fallback=True)
    nodes = [node for node in all_nodes(case.model.graph.node) if node.op_type != "Constant"]
    if is_quantized(graph) or not nodes:
        return ""
    try:
        profile = qg.profile(graph, list(case.samples), progress=False)
    except qg.CalibrationError:  # infinite values
        return ""

    def quantized(**options: Any) -> Graph:
        return qg.quantize(graph, profile, qg.QuantizationConfig(**options))

    types = sorted({node.op_type for node in nodes})
    chosen = {kind for kind in types if rng.random() < 0.5} or {types[0]}
    everything = quantized(ignored_scope=qg.IgnoredScope(types=tuple(types), validate=False))
    if left := [name for name, _ in integers(everything)]:
        return f"without any of the types {types} these are integers: {left[:4]}"
    if left := within(case.model, chosen, quantized(ignored_scope=scope(types=chosen))):
        return f"without the types {sorted(chosen)} these are integers: {left[:4]}"
    results = {name for node in nodes for name in node.output if name and rng.random() < 0.5}
    without = quantized(ignored_scope=scope(names=results))
    if left := [name for name, _ in integers(without) if name in results]:
        return f"without the results {sorted(results)} these are integers: {left[:4]}"
    try:
        only = quantized(op_types_to_quantize=sorted(chosen))
    except qg.IgnoredScopeError:  # nothing of them leads to an output
        return ""
    return left_out(case.model, chosen, quantized(), only)


def scope(types: Set[str] = frozenset(), names: Set[str] = frozenset()) -> qg.IgnoredScope:
    """The option, which also names what does not lead to an output."""
    return qg.IgnoredScope(names=tuple(names), types=tuple(types), validate=False)


def integers(graph: Graph) -> Iterator[tuple[str, bool]]:
    """The values that are integers with a scale, and whether they are constants."""
    for node in graph.every_node():
        if node.type.quant is not None:
            yield node.name, isinstance(node, Constant)


def readers(model: onnx.ModelProto) -> Mapping[str, set[str]]:
    """Initializer -> the operators that read it."""
    actual: dict[str, set[str]] = {tensor.name: set() for tensor in model.graph.initializer}
    for node in all_nodes(model.graph.node):
        for name in node.input:
            if name in actual:
                actual[name].add(node.op_type)
    return actual


def stored(model: onnx.ModelProto, graph: Graph, names: Set[str]) -> set[str]:
    """The initializers of which a graph has integers: with the same numbers in any order, but for
    their rounding and a factor."""
    constants = [n for n in graph.every_node() if isinstance(n, Constant) and n.type.quant]
    codes = [ordered(dequantize(node.value, node.type.params)) for node in constants]
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in names}
    return {
        name
        for name, array in weights.items()
        if array.dtype == np.float32 and array.size >= FEWEST and array.any()
        for other in codes
        if other.size == array.size and np.abs(other - ordered(array)).max() < STEP
    }


def ordered(array: Array) -> Array:
    """The numbers of an array in order, as shares of the largest."""
    return np.sort(array, axis=None) / max(float(np.abs(array).max(initial=0)), TINY)


def within(model: onnx.ModelProto, chosen: Set[str], graph: Graph) -> list[str]:
    """Integers of what only the chosen operators read or compute."""
    weights = {name for name, kinds in readers(model).items() if kinds and kinds <= chosen}
    results = {n for node in model.graph.node if node.op_type in chosen for n in node.output if n}
    return sorted(stored(model, graph, weights) | (results & {name for name, _ in integers(graph)}))


def left_out(model: onnx.ModelProto, chosen: Set[str], usual: Graph, only: Graph) -> str:
    """Weights of chosen products that are integers without the option alone, and of other operators
    that are integers with it."""
    kinds = readers(model)
    mine = {name for name, item in kinds.items() if item and item <= chosen & PRODUCTS}
    if lost := stored(model, usual, mine) - stored(model, only, mine):
        return f"op_types_to_quantize={sorted(chosen)} leaves out {sorted(lost)}"
    chosen_whole = {  # an operator with subgraphs stands for all that is in them
        name
        for node in all_nodes(model.graph.node)
        if node.op_type in chosen
        for inner in all_nodes([node])
        for name in inner.input
    }
    others = {name for name, item in kinds.items() if item and item <= PRODUCTS - chosen}
    others -= chosen_whole
    if more := stored(model, only, others):
        return f"op_types_to_quantize={sorted(chosen)} takes {sorted(more)}, too"
    return ""
