"""Eligibility of operators for int8, and functions of one value that become tables.

Every operator is either in ``NO_INT8_FORM`` or in ``quantization.rules``.  A function of one value
is a table in int8, and so is a chain of them, which rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    LRN,
    AntialiasedResize,
    BatchNormalization,
    Dequantize,
    Div,
    Elementwise,
    External,
    Gather,
    GroupedMatMul,
    LayerNormalization,
    Log,
    LogSoftmax,
    Loop,
    MatMul,
    Pow,
    PRelu,
    Quantize,
    QuantizeRows,
    Reciprocal,
    ReduceSum,
    Rescale,
    Reshape,
    RowMap,
    Scatter,
    Table,
    TopK,
    Transpose,
    Where,
)
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Unary
from quantglow.profiling import Range
from quantglow.quantization.plan.params import ROUNDED_TWICE, reads_stored_weights, stored_weights
from quantglow.quantization.smoothing_scales import is_smoothing_scale

Function = Callable[[Any], Any]

NO_INT8_FORM: dict[type[Node], str] = {
    AntialiasedResize: "its sums of many pixels are float",
    Div: "a quotient of two tensors has no int8 form",
    Pow: "a power of two tensors has no int8 form",
    Where: "its two sides have no common int8 range",
    LRN: "its divisor is a power of a sum of squares, which needs float",
    LogSoftmax: "its result has no natural int8 range",
    BatchNormalization: "it is not folded into a convolution",
    ReduceSum: "sums have no int8 form; the mean has",
    Quantize: "it is part of the model",
    Dequantize: "it is part of the model",
    Rescale: "it is part of the model",
    Table: "it is part of the model",
    External: "another runtime computes it",
    Loop: "its steps compute in float but for products with constant weights",
    Elementwise: "it computes a formula, integers or conditions in one step",
    RowMap: "it computes on whole rows in float",
    Scatter: "its two tensors have no common int8 range",
    TopK: "its results are indices",
    QuantizeRows: "it quantizes each row when it is computed",
    GroupedMatMul: "its weights are quantized in groups already",
}
"""Operator without a rule -> the reason."""


def ineligibility(node: Node) -> str:
    """Why this node cannot be int8, or an empty string."""
    if isinstance(node, External):
        return f"onnxruntime computes {node.op_type}: {node.reason}"
    for kind in type(node).__mro__:
        if kind in NO_INT8_FORM:
            return NO_INT8_FORM[kind]
    operands = node.operands[:1] if isinstance(node, Gather) else node.operands
    if not all(value.type.dtype.is_float for value in (node, *operands)):
        return "its tensors are not float"
    if all(isinstance(o, Constant) for o in node.operands):
        return "it depends on constants only"
    if reads_stored_weights(node) and stored_weights(node) is None:
        return ROUNDED_TWICE
    if isinstance(node, Contraction):
        return _contraction_ineligibility(node)
    if is_smoothing_scale(node):
        return "it scales channels before they are rounded"
    if isinstance(node, PRelu) and not isinstance(node.slope, Constant):
        return "its slope is not constant"
    return ""


def _contraction_ineligibility(node: Contraction) -> str:
    if not isinstance(node.w, Constant):
        return "its weights are not constant"
    if node.b is not None and not isinstance(node.b, Constant):
        return "its bias is not constant"
    return ""


def normalizations(graph: Graph, floats: Set[Node]) -> list[Node]:
    """Normalizations that stay float: their operand exists in float at no cost, or their result is
    an output only.

    A normalization divides by the deviation of a row, and a few very large values of its operand
    make the steps of all values coarse.
    """
    floating: set[Node] = set()
    for node in graph.compute_nodes():
        if not isinstance(node, LayerNormalization) or node in floats:
            continue
        x = node.x
        while isinstance(x, Reshape | Transpose):
            x = x.x
        free = isinstance(x, (Input, Binary, Contraction, MatMul)) or x in floats or x in floating
        if free or not graph.users[node]:
            floating.add(node)
    return [node for node in graph.compute_nodes() if node in floating]


def divisors(graph: Graph, floats: Set[Node], ranges: Mapping[Node, Range]) -> list[Node]:
    """The nodes whose int8 code of 0 would make a reader among ``floats`` infinite.

    Values that reach such a reader only through operators that keep 0 are among them.
    """
    nodes: set[Node] = set()
    for node in reversed(graph.compute_nodes()):
        readers = graph.users[node]
        unbounded = any(
            (user in floats and _is_infinite_at_zero(user, node))
            or (user in nodes and user.has(Trait.KEEPS_ZERO))
            for user in readers
        )
        if unbounded and not _is_safe_product(node, floats | nodes >= set(readers), ranges):
            nodes.add(node)
    return [node for node in graph.compute_nodes() if node in nodes]


def _is_safe_product(node: Node, gives_float: bool, ranges: Mapping[Node, Range]) -> bool:
    """Whether a node is a matrix product that stores no integers, or whose float result may be 0,
    too.
    """
    if not isinstance(node, (Contraction, MatMul)):
        return False
    return gives_float or (node in ranges and ranges[node].low <= 0 <= ranges[node].high)


def _is_infinite_at_zero(reader: Node, x: Node) -> bool:
    match reader:
        case Div(y=divisor):
            return x is divisor
        case Log() | Reciprocal():
            return True
        case Pow(x=base, y=Constant(value=exponents)):
            return x is base and bool(np.any(exponents < 0))
        case Pow(x=base):
            return x is base
    return False


def unary_function(node: Node) -> tuple[Node, Function] | None:
    """``(x, f)`` of a node that computes ``f(x)``: unary, or binary with a scalar Constant; else
    None.
    """
    if isinstance(node, Unary):
        return node.x, node.function
    if not isinstance(node, Binary) or node.out is not None:
        return None
    x, c = (node.y, node.x) if isinstance(node.x, Constant) else (node.x, node.y)
    if not isinstance(c, Constant) or isinstance(x, Constant) or c.value.size != 1:
        return None
    if x.type != node.type:
        return None
    return x, _with_constant(node, c is node.x, float(c.value.reshape(())))


def _with_constant(node: Binary, is_left: bool, c: float) -> Function:
    """The bounded function of the other operand."""

    def function(x: Any) -> Any:
        constant = x.dtype.type(c)
        value = node.function(constant, x) if is_left else node.function(x, constant)
        return np.clip(value, node.low, node.high)

    return function


def compose(node: Node, may_skip: Callable[[Node], bool]) -> tuple[Node, Function]:
    """``(x, f)`` with x as far up as the nodes between may be skipped."""
    pair = unary_function(node)
    assert pair is not None, "the caller asked for a function of one value"
    x, function = pair
    while may_skip(x) and (inner := unary_function(x)) is not None:
        x, function = inner[0], _after(function, inner[1])
    return x, function


def _after(outer: Function, inner: Function) -> Function:
    return lambda x: outer(inner(x))
