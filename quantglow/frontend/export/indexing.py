"""Export of operators that read and write at indices."""

from __future__ import annotations

import onnx

from quantglow.frontend.export.writer import Value, Writer, export_rule, identity
from quantglow.graph.node import Node
from quantglow.ops import Gather, Scatter, TopK
from quantglow.types import DType


@export_rule(Gather)
def gather(node: Gather, w: Writer) -> Value:
    operands = [w.real(node.x), w.stored(node.indices)]
    made = w.emit("Gather", operands, f"{node.name}:real", axis=node.axis)
    return w.rounded(node, made, identity(node.type.rank))


@export_rule(Scatter)
def scatter(node: Scatter, w: Writer) -> Value:
    """Rows are coordinates of one axis: indices [n, 1]."""
    rows = w.reshaped(as_int64(node.indices, w), (node.indices.type.size, 1), f"{node.name}:rows")
    operands = [w.real(node.x), rows, w.real(node.updates)]
    hint = f"{node.name}:real"
    made = w.emit("ScatterND", operands, hint, reduction=node.reduction)
    return w.rounded(node, made, identity(node.type.rank))


def as_int64(node: Node, w: Writer) -> str:
    if node.type.dtype is DType.I64:
        return w.stored(node)
    return w.emit("Cast", [w.stored(node)], f"{node.name}:int64", to=onnx.TensorProto.INT64)


@export_rule(TopK)
def top_k(node: TopK, w: Writer) -> Value:
    """TopK; its indices, the second result of the ONNX operator."""
    operands = [w.real(node.x), w.integers([node.k], f"{node.name}:k")]
    results = [w.number(f"{node.name}:values"), w.number(node.name)]
    made = onnx.helper.make_node("TopK", operands, results, axis=-1, largest=int(node.largest))
    w.nodes.append(made)
    return Value(results[1], identity(node.type.rank))
