"""Ends of a network that stay in float: first and last operators, and copied inputs.

The last operators move or finish the results of the last matrix products; the first ones scale and
shift an input.  ``choice_scores`` finds the scores that TopK or ArgMax choose from, and what is
made of their indices.  ``copies`` are operators between an input and an output that only move
numbers, such as caches of decoders: they are exact in the outputs, and int8 operators read a
rounded copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.kinds import Trait
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    Add,
    Conv,
    Div,
    Elementwise,
    LogSoftmax,
    MatMul,
    Mul,
    Reshape,
    Softmax,
    Sub,
    Transpose,
)
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.expression import arg, call
from quantglow.ir.ops.indexing import Gather, TopK
from quantglow.ir.ops.resize import Resize
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.types import DType
from quantglow.profiling import Range

PRODUCTS = (Contraction, MatMul)
"""Operators whose int32 sums give float32 directly if no operator reads integers."""

LINEAR = (Mul, Add, Sub, Div)
BYTES = (DType.U8, DType.I8)
AS_FLOAT = call("float", arg(0))

PIXEL_TOLERANCE = 1e-4
"""Distance of a pixel from a byte that float32 makes of scales and shifts."""

SHOWN_PIXELS = 4
"""Channels whose pixels a reason names."""


def tail(graph: Graph) -> list[Node]:
    """Cheap nodes behind the last matrix products that lead to graph outputs only."""
    leading: set[Node] = set()
    for node in reversed(graph.compute_nodes()):
        is_last = all(user in leading for user in graph.users[node])
        finishes = node.has(Trait.FINISHES) or isinstance(node, Softmax | LogSoftmax)
        if is_last and (finishes or choice_scores(node) is not None):
            leading.add(node)
    nodes: set[Node] = set()
    for node in graph.nodes:
        fed = all(isinstance(o, (*PRODUCTS, Constant)) or o in nodes for o in node.operands)
        if node in leading and (fed or isinstance(node, Softmax | LogSoftmax)):
            nodes.add(node)
    return [node for node in graph.nodes if node in nodes]


def byte_ranges(graph: Graph) -> dict[Node, Range]:
    """The range of floats that are bytes, also less the pixel of the padding, whatever calibration
    saw: int8 holds each exactly.
    """
    ranges: dict[Node, Range] = {
        node: Range(*map(float, node.args[0].type.dtype.limits))
        for node in graph.compute_nodes()
        if isinstance(node, Elementwise)
        and node.expression == AS_FLOAT
        and node.type.dtype.is_float
        and node.args[0].type.dtype in BYTES
    }
    for node in graph.compute_nodes():
        source = ranges.get(node.operands[0]) if node.operands else None
        pixel = None if source is None else _padding_pixel(node, source)
        if source is not None and pixel is not None:
            ranges[node] = Range(source.low - pixel, source.high - pixel)
    return ranges


def _padding_pixel(node: Node, pixels: Range) -> float | None:
    """The byte that a shift of bytes makes 0, the same for all channels; None if there is none."""
    if not isinstance(node, Add) or not isinstance(node.y, Constant):
        return None
    low, high = (-float(extreme) for extreme in node.y.extremes[::-1])
    whole = float(np.rint(low))
    is_byte = pixels.low <= whole <= pixels.high
    return (
        whole if is_byte and max(abs(low - whole), abs(high - whole)) <= PIXEL_TOLERANCE else None
    )


def preparation(node: Node, graph: Graph, bytes_of: Mapping[Node, Range]) -> str:
    """Why an operator of ``head`` is float."""
    reason = "prepares an input: in float, it is rounded once"
    padded = [u for u in graph.users[node] if isinstance(u, Conv) and has_padding(u.pads)]
    if not isinstance(node, Add) or not isinstance(node.y, Constant):
        return reason
    if not padded or node.x not in bytes_of or node in bytes_of:
        return reason
    pixels = ", ".join(f"{-value:.4g}" for value in node.y.value.reshape(-1)[:SHOWN_PIXELS])
    return (
        f"{reason}; bytes are not exact in int8, because the padding of {padded[0].name!r} is the "
        f"pixel {pixels}, which is no byte for all channels"
    )


def head(graph: Graph) -> list[Node]:
    """Operators that scale and shift an input by Constants before it is rounded; of bytes, which
    become float first, those that resize, too.
    """
    prepared, nodes = set[Node](graph.inputs), list[Node]()
    images: set[Node] = {node for node in graph.inputs if node.type.dtype in BYTES}
    for node in graph.compute_nodes():
        computed = [operand for operand in node.operands if not isinstance(operand, Constant)]
        if len(computed) != 1 or computed[0] not in prepared:
            continue
        source, of_bytes = computed[0], computed[0] in images
        resizes = of_bytes and isinstance(node, Resize)
        converts = of_bytes and isinstance(node, Elementwise) and node.type.dtype.is_float
        if resizes or converts or isinstance(node, (*LINEAR, Transpose)):
            prepared.add(node)
            images |= {node} if of_bytes else set()
        if resizes or (isinstance(node, LINEAR) and node.type == source.type):
            nodes.append(node)
    return nodes


def copies(graph: Graph) -> frozenset[Node]:
    """Operators on ways from a float input to an output that only move numbers."""
    entering: set[Node] = {node for node in graph.inputs if node.type.dtype.is_float}
    moving: list[Node] = []
    for node in graph.compute_nodes():
        if node.has(Trait.MOVES) and any(operand in entering for operand in node.operands):
            entering.add(node)
            moving.append(node)
    leaving: set[Node] = set()
    ends = {node for _, node in graph.outputs}
    for node in reversed(moving):
        if node in ends or any(user in leaving for user in graph.users[node]):
            leaving.add(node)
    return frozenset(leaving)


def choice_scores(node: Node) -> Node | None:
    """The scores that a node chooses from, or None.

    A choice is TopK, arithmetic on the indices that it gives, or a Gather at these.
    """
    if isinstance(node, TopK):
        return node.x
    if isinstance(node, Gather) and _from_indices(node.indices) is not None:
        return node.x
    return _from_indices(node) if isinstance(node, Elementwise) else None


def _from_indices(node: Node) -> Node | None:
    """The scores behind indices, which may have been moved and computed with."""
    node = behind_views(node)
    if isinstance(node, TopK):
        return node.x
    is_integer = isinstance(node, Elementwise) and not node.type.dtype.is_float
    computed = [o for o in node.operands if not isinstance(o, Constant)] if is_integer else []
    return _from_indices(computed[0]) if len(computed) == 1 else None


def behind_views(node: Node) -> Node:
    """The node whose elements ``node`` only moves."""
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return node
