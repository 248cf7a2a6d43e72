"""Unsigned storage: int8 activations are kept as uint8, every code and zero point plus 128.

x86 dot-product instructions multiply unsigned by signed bytes.  The reals do not change, and no
stage above lowering sees this.  Weights (operands ``w`` of contractions) stay signed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.lowering.rules import tag
from quantglow.ops import Table
from quantglow.ops.convolution import Contraction
from quantglow.types import DType, ElementType, QuantParams, TensorType

SHIFT = 128


def store_unsigned(graph: Graph) -> Graph:
    """The same graph on uint8 activations; int8 inputs and outputs are converted at the border."""
    weights = {n.w for n in graph.nodes if isinstance(n, Contraction)}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in weights or isinstance(node, Input):
            new[node] = node
            if isinstance(node, Input) and is_signed(node.type):
                new[node] = converted(node, unsigned(node.type.element), "unsigned")
            continue
        moved = node.with_operands(tuple(new[o] for o in node.operands))
        new[node] = _unsigned_node(moved)
    outputs = [_border(name, node, new[node]) for name, node in graph.outputs]
    return graph.with_outputs(outputs)


def _border(name: str, node: Node, moved: Node) -> Node:
    if not is_signed(node.type) or isinstance(node, Input):
        return node if isinstance(node, Input) else moved
    return converted(moved, node.type.element, f"signed:{name}")


def _unsigned_node(node: Node) -> Node:
    if isinstance(node, Constant):
        if node.element is None or not is_signed(node.type):
            return node
        value = (node.value.astype(np.int16) + SHIFT).astype(np.uint8)
        return replace(node, value=value, element=unsigned(node.element))
    out = getattr(node, "out", None)
    if not isinstance(out, ElementType) or out.dtype is not DType.I8:
        return node
    return replace(node, out=unsigned(out))  # type: ignore[call-arg]


def is_signed(kind: TensorType) -> bool:
    """Whether a tensor is an int8 activation (per-tensor parameters)."""
    return kind.dtype is DType.I8 and kind.quant is not None and kind.quant.axis is None


def unsigned(element: ElementType) -> ElementType:
    assert element.quant is not None
    params = element.quant
    return ElementType(DType.U8, QuantParams(params.scales, (params.zero_point + SHIFT,)))


def converted(node: Node, element: ElementType, role: str) -> Node:
    """The same codes in the other storage type."""
    codes = np.arange(256) + element.dtype.limits[0]
    table = Constant(
        name=tag(node, f"{role}-table"), value=codes.astype(element.dtype.numpy), element=element
    )
    return Table(name=tag(node, role), x=node, table=table, out=element, function="storage")
