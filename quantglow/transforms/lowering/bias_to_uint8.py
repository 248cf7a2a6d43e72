"""Unsigned storage: int8 activations are kept as uint8, every code and zero point plus 128.

Targets whose dot products multiply unsigned by signed bytes ask for it.  The reals do not change,
and no stage above lowering sees this.  Weights (operands ``w`` of contractions) stay signed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Elementwise, Table
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.lowering.contraction import require_constant
from quantglow.transforms.lowering.rules import tag

SHIFT = 128


def bias_to_uint8(graph: Graph) -> Graph:
    """The same graph on uint8 activations; int8 inputs and outputs are converted at the border."""
    weights = _weights(graph)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = _move(node, new, weights)
    # A value that is two outputs of one name is converted once: names are unique.
    borders = {(name, node): _border(name, node, new[node]) for name, node in graph.outputs}
    outputs = [borders[end] for end in graph.outputs]
    return graph.with_outputs(outputs)


def _weights(graph: Graph) -> dict[Node, Constant]:
    """Quantized weights stay signed; those that are activations too get a name of their own."""
    products = [n for n in graph.nodes if isinstance(n, Contraction) and n.w.type.quant]
    weights = {n.w: require_constant(n, n.w) for n in products}
    reads = Counter(n.w for n in products)
    shared = (w for w in weights if graph.use_counts[w] > reads[w])
    return weights | {w: replace(weights[w], name=tag(w, "weights")) for w in shared}


def _move(node: Node, new: Mapping[Node, Node], weights: Mapping[Node, Constant]) -> Node:
    """``node`` on its moved operands, in unsigned storage."""
    if isinstance(node, Input):
        kind = node.type
        return (
            _convert(node, _unsigned_type(kind.element), "unsigned") if _is_signed(kind) else node
        )
    if isinstance(node, Constant):
        only_weights = weights.get(node) is node
        return node if only_weights or not _is_signed(node.type) else _unsigned_constant(node)
    changes: dict[str, Any] = {}
    if _is_signed(node.type) and isinstance(getattr(node, "out", None), ElementType):
        changes["out"] = _unsigned_type(node.type.element)
    if isinstance(node, Table):
        # The table changes with `out`: alone, neither is well typed.
        table = _table(node, new[node.table], signed=not changes)
        return replace(node, x=new[node.x], table=table, **changes)
    operands = [new[o] for o in node.operands]
    if isinstance(node, Elementwise) and not changes:  # It computes with the integers themselves.
        signed = {o: _as_signed(node, o, new[o]) for o in node.operands}
        operands = [signed[o] for o in node.operands]
    if isinstance(node, Contraction):
        operands[1] = weights.get(node.w, operands[1])
    moved = node.with_operands(tuple(operands))
    return replace(moved, **changes) if changes else moved


def _as_signed(reader: Node, node: Node, moved: Node) -> Node:
    """The codes as they were before, for one reader."""
    role = f"signed:{reader.name}"
    return _convert(moved, node.type.element, role) if _is_signed(node.type) else moved


def _table(node: Table, moved: Node, *, signed: bool) -> Node:
    """The table in the storage of the result, whatever its own element type says."""
    if node.out.dtype is not DType.I8 or (moved.type.dtype is DType.I8) == signed:
        return moved
    return node.table if signed else _unsigned_constant(node.table)


def _border(name: str, node: Node, moved: Node) -> Node:
    if isinstance(node, Input):
        return node
    return _convert(moved, node.type.element, f"signed:{name}") if _is_signed(node.type) else moved


def _unsigned_constant(node: Node) -> Constant:
    assert isinstance(node, Constant)
    value = (node.value.astype(np.int16) + SHIFT).astype(np.uint8)
    return replace(node, value=value, element=node.element and _unsigned_type(node.element))


def _is_signed(kind: TensorType) -> bool:
    """Whether a tensor is an int8 activation (per-tensor parameters)."""
    return kind.dtype is DType.I8 and kind.quant is not None and kind.quant.axis is None


def _unsigned_type(element: ElementType) -> ElementType:
    assert element.quant is not None
    params = element.quant
    return ElementType(DType.U8, QuantParams(params.scales, (params.zero_point + SHIFT,)))


def _convert(node: Node, element: ElementType, role: str) -> Node:
    """The same codes in the other storage type."""
    codes = np.arange(256) + element.dtype.limits[0]
    table = Constant(
        name=tag(node, f"{role}-table"), value=codes.astype(element.dtype.numpy), element=element
    )
    return Table(name=tag(node, role), x=node, table=table, out=element, function="storage")
