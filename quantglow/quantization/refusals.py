"""Why an operator stays float.  Every operator is either here or in ``rules``."""

from __future__ import annotations

from quantglow.graph.node import Constant, Node
from quantglow.ops import (
    LRN,
    BatchNormalization,
    Dequantize,
    Div,
    External,
    Gather,
    LayerNormalization,
    LogSoftmax,
    Map,
    Pow,
    PRelu,
    Quantize,
    ReduceSum,
    Rescale,
    Scatter,
    Table,
    TopK,
    Where,
)
from quantglow.ops.convolution import Contraction

NO_INT8_FORM: dict[type[Node], str] = {
    Div: "a quotient of two tensors has no int8 form",
    Pow: "a power of two tensors has no int8 form",
    Where: "its two sides have no common int8 range",
    LRN: "its divisor is a power of a sum of squares, which needs float",
    LayerNormalization: "the mean and the variance of a row need float",
    LogSoftmax: "its result has no natural int8 range",
    BatchNormalization: "it is not folded into a convolution",
    ReduceSum: "sums have no int8 form; the mean has",
    Quantize: "it is part of the model",
    Dequantize: "it is part of the model",
    Rescale: "it is part of the model",
    Table: "it is part of the model",
    External: "another runtime computes it",
    Map: "it computes integers or conditions",
    Scatter: "its two tensors have no common int8 range",
    TopK: "its results are indices",
}
"""Operators without a rule, and the reason."""


def refusal(node: Node) -> str:
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
    if isinstance(node, Contraction):
        return _contraction_refusal(node)
    if isinstance(node, PRelu) and not isinstance(node.slope, Constant):
        return "its slope is not constant"
    return ""


def _contraction_refusal(node: Contraction) -> str:
    if not isinstance(node.w, Constant):
        return "its weights are not constant"
    if node.b is not None and not isinstance(node.b, Constant):
        return "its bias is not constant"
    return ""
