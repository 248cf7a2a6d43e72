"""A graph for a part of its batch.

If every operator treats the samples along axis 0 apart from each other, the graph of a smaller
batch is the same graph with a smaller axis 0, and gives the same results sample by sample.  A
sample may have several rows of axis 0 where a Reshape joined it with axes behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Input, Node, operand_fields
from quantglow.ir.ops.binary import Binary
from quantglow.ir.ops.external import External
from quantglow.ir.ops.shape import Concat, Expand, Reshape
from quantglow.ir.symbolic.size import Dim, Shape, decide, surely_divides, surely_equal
from quantglow.support.errors import TypeRuleError


def split_batch(graph: Graph, pieces: Dim) -> Graph | None:
    """The graph for one of ``pieces`` equal parts of the batch; None if samples may depend on each
    other, or if an output is not made of samples.  Names stay.
    """
    batch = batch_size(graph)
    if batch is None or decide(batch % pieces != 0):
        return None
    parts: dict[Node, Node] = {}
    shared: set[Node] = set()
    inputs: list[Input] = []
    for node in graph.nodes:
        if _is_shared(node, shared, batch):
            shared.add(node)
            parts[node] = node
            continue
        part = _part(node, parts, shared, batch, pieces)
        if part is None:
            return None
        parts[node] = part
    if any(node in shared for _, node in graph.outputs):
        return None
    for node in graph.inputs:
        part = parts[node]
        assert isinstance(part, Input)
        inputs.append(part)
    outputs = tuple((name, parts[node]) for name, node in graph.outputs)
    return Graph(tuple(inputs), outputs, graph.source_hash)


def batch_size(graph: Graph) -> Dim | None:
    """The length of axis 0, if it counts samples in all inputs and outputs.

    A constant output has no samples, whatever its shape: every part of the batch would give all
    of it.
    """
    ends = [*graph.inputs, *(node for _, node in graph.outputs)]
    lengths = {node.type.shape[:1] for node in ends}
    if len(lengths) != 1 or lengths == {()} or not graph.inputs:
        return None
    if any(isinstance(node, Constant) for node in ends):
        return None
    return next(iter(lengths))[0]


def _is_shared(node: Node, shared: Set[Node], batch: Dim) -> bool:
    """Whether a node is computed of Constants only, as a grid of free sizes is, and has no entry
    for each sample.  ``shared``: those before it."""
    if not node.operands or isinstance(node, External) or _is_repeated(node, batch):
        return False
    return all(isinstance(operand, Constant) or operand in shared for operand in node.operands)


def _is_repeated(node: Node, batch: Dim) -> bool:
    """Whether a node gives each sample the same."""
    return (
        isinstance(node, Expand)
        and surely_equal(node.shape[:1], (batch,))
        and _is_alike(node.x, node.type.rank)
    )


def _is_alike(operand: Node, rank: int) -> bool:
    """Whether an operand has no axis of samples in a result of this rank."""
    shape = operand.type.shape
    return len(shape) < rank or surely_equal(shape[:1], (1,))


def _part(
    node: Node, parts: Mapping[Node, Node], shared: Set[Node], batch: Dim, pieces: Dim
) -> Node | None:
    if isinstance(node, Constant):
        return node
    if not node.type.rank or not surely_divides(batch, node.type.shape[0]):
        return None
    shape = (node.type.shape[0] // pieces, *node.type.shape[1:])
    if isinstance(node, Input):
        return replace(node, tensor=node.tensor.with_shape(shape))
    computed = [o for o in node.operands if not isinstance(o, Constant) and o not in shared]
    if not all(isinstance(node, Reshape) or _shares_rows(node, operand) for operand in computed):
        return None
    changes = _changes(node, computed, shared, shape, batch)
    if changes is None:
        return None
    try:
        part = replace(node, **_operands(node, parts, shape), **changes)
    except TypeRuleError:
        return None
    return part if part.type == node.type.with_shape(shape) else None


def _shares_rows(node: Node, operand: Node) -> bool:
    """Whether each row of a result comes from that of an operand."""
    return surely_equal(node.type.shape[:1], operand.type.shape[:1])


def _changes(
    node: Node, computed: Sequence[Node], shared: Set[Node], shape: Shape, batch: Dim
) -> dict[str, Any] | None:
    if not computed:
        return {"shape": shape} if _is_repeated(node, batch) else None
    if shared.isdisjoint(node.operands):
        return node.for_samples(shape)
    rank = node.type.rank
    is_aligned = all(operand.type.rank == rank for operand in computed)
    others = (operand for operand in node.operands if operand not in computed)
    by_element = isinstance(node, Binary) or node.has(Trait.ELEMENTWISE)
    is_alike = by_element and all(_is_alike(other, rank) for other in others)
    return {} if is_aligned and is_alike else None


def _operands(node: Node, parts: Mapping[Node, Node], shape: Shape) -> dict[str, Any]:
    """The operands of the part, by field."""
    operands: dict[str, Any] = {}
    for name in operand_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, tuple):
            pieces = (parts[operand] for operand in value)
            is_concat = isinstance(node, Concat)
            operands[name] = tuple(_cut(part, shape[0]) if is_concat else part for part in pieces)
        elif value is not None:
            operands[name] = parts[value]
    return operands


def _cut(operand: Node, batch: Dim) -> Node:
    """A part of a Concat, equal for all samples, with ``batch`` of them left."""
    if not isinstance(operand, Constant):
        return operand
    return replace(operand, value=np.ascontiguousarray(operand.value[:batch]))
