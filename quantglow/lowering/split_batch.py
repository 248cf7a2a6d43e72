"""A graph for a part of its batch.

Where every operator treats the samples along axis 0 apart from each other, the graph of a smaller
batch is the same graph with a smaller axis 0, and gives the same results sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow import ops
from quantglow.errors import TypeRuleError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node, operand_fields
from quantglow.ops.contraction import Contraction
from quantglow.ops.pooling import Pool, Reduce

Shape = tuple[int, ...]
Rule = Callable[[Any, Shape], dict[str, Any] | None]
"""A node and the shape of its part -> the attributes that differ; None where samples mix."""


def split_batch(graph: Graph, pieces: int) -> Graph | None:
    """The graph for one of so many equal parts of the batch; None if samples may depend on each
    other, or if an output is not made of samples.  Names stay.
    """
    batch = batch_of(graph)
    if batch is None or batch % pieces:
        return None
    made: dict[Node, Node] = {}
    inputs: list[Input] = []
    for node in graph.nodes:
        part = _part(node, made, (batch // pieces, *node.type.shape[1:]), batch)
        if part is None:
            return None
        made[node] = part
    for node in graph.inputs:
        part = made[node]
        assert isinstance(part, Input)
        inputs.append(part)
    outputs = tuple((name, made[node]) for name, node in graph.outputs)
    return Graph(tuple(inputs), outputs, graph.source_hash)


def batch_of(graph: Graph) -> int | None:
    """The length of axis 0, if it counts samples in all inputs and outputs.

    A constant output has no samples, whatever its shape: every part of the batch would give all
    of it.
    """
    ends = [*graph.inputs, *(node for _, node in graph.outputs)]
    found = {node.type.shape[:1] for node in ends}
    if len(found) != 1 or found == {()} or not graph.inputs:
        return None
    if any(isinstance(node, Constant) for node in ends):
        return None
    return next(iter(found))[0]


def _part(node: Node, made: Mapping[Node, Node], shape: Shape, batch: int) -> Node | None:
    if isinstance(node, Constant):
        return node
    if isinstance(node, Input):
        return replace(node, tensor=node.tensor.with_shape(shape))
    computed = [o for o in node.operands if not isinstance(o, Constant)]
    if not computed or any(o.type.shape[:1] != (batch,) for o in (node, *computed)):
        return None
    changes = next((rule(node, shape) for kinds, rule in _RULES if isinstance(node, kinds)), None)
    if changes is None:
        return None
    try:
        part = replace(node, **_operands(node, made, shape), **changes)
    except TypeRuleError:
        return None
    return part if part.type == node.type.with_shape(shape) else None


def _operands(node: Node, made: Mapping[Node, Node], shape: Shape) -> dict[str, Any]:
    """The operands of the part, by field."""
    found: dict[str, Any] = {}
    for name in operand_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, tuple):
            parts = (made[operand] for operand in value)
            is_concat = isinstance(node, ops.Concat)
            found[name] = tuple(_cut(part, shape[0]) if is_concat else part for part in parts)
        elif value is not None:
            found[name] = made[value]
    return found


def _cut(operand: Node, batch: int) -> Node:
    """A part of a Concat that is the same for all samples, for some of them."""
    if not isinstance(operand, Constant):
        return operand
    return replace(operand, value=np.ascontiguousarray(operand.value[:batch]))


def _images(node: Node, shape: Shape) -> dict[str, Any] | None:
    """Weights must be the same for all samples, which are images or rows of their own."""
    shared = [node.w, node.b] if isinstance(node, Contraction) else list(node.operands[1:])
    return {} if all(o is None or isinstance(o, Constant) for o in shared) else None


def _elementwise(node: Node, shape: Shape) -> dict[str, Any] | None:
    """Constants must be the same for all samples, and computed operands not move their axis 0."""
    rank = len(shape)
    for operand in node.operands:
        if not isinstance(operand, Constant):
            if operand.type.rank != rank:
                return None
        elif operand.type.rank == rank and operand.type.shape[0] != 1:
            return None
    return {}


def _per_tensor(node: Node, shape: Shape) -> dict[str, Any] | None:
    """Quantization along axis 0 would be that of samples."""
    kinds = [node.type, *(operand.type for operand in node.operands)]
    return None if any(k.quant is not None and k.quant.axis == 0 for k in kinds) else {}


def _last_axis(node: Node, shape: Shape) -> dict[str, Any] | None:
    """Rows are samples or parts of them."""
    return _images(node, shape) if len(shape) > 1 else None


def _reduce(node: Reduce, shape: Shape) -> dict[str, Any] | None:
    return None if 0 in node.axes else {}


def _concat(node: ops.Concat, shape: Shape) -> dict[str, Any] | None:
    """Constants must be the same for all samples."""
    constants = [part.value for part in node.parts if isinstance(part, Constant)]
    alike = all((value == value[:1]).all() for value in constants)
    return {} if node.axis and alike else None


def _transpose(node: ops.Transpose, shape: Shape) -> dict[str, Any] | None:
    return {} if node.perm[0] == 0 else None


def _reshape(node: ops.Reshape, shape: Shape) -> dict[str, Any]:
    """Elements keep their order, so those of a sample stay together."""
    return {"shape": shape}


def _slice(node: ops.Slice, shape: Shape) -> dict[str, Any] | None:
    if node.starts[0] or node.steps[0] != 1:
        return None
    return {"sizes": shape}


def _pad(node: ops.Pad, shape: Shape) -> dict[str, Any] | None:
    return None if node.before[0] or node.after[0] else {}


_RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    ((Contraction, Pool, ops.Resize, ops.LRN), _images),
    ((ops.Quantize, ops.Dequantize, ops.Rescale, ops.Table), _per_tensor),
    ((ops.Unary, ops.Binary, ops.Clip, ops.PRelu), _elementwise),
    ((ops.Softmax, ops.LogSoftmax, ops.LayerNormalization, ops.BatchNormalization), _last_axis),
    (Reduce, _reduce),
    (ops.Concat, _concat),
    (ops.Transpose, _transpose),
    (ops.Reshape, _reshape),
    (ops.Slice, _slice),
    (ops.Pad, _pad),
)
"""Operators without a rule may mix samples."""
