"""Detectors that compute boxes in the graph from distributions of distances (distribution focal
loss: Li et al., Generalized Focal Loss, 2020; PicoDet, NanoDet, YOLOv8).

The integral layer is the mean of each distribution: a Softmax over the distances 0, 1, ... n - 1,
times these distances.  The logits of boxes and of classes are often joined before it, and results
joined behind it: rounded, they would share the steps of the widest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.graph.traits import Trait
from quantglow.ops import Concat, MatMul, Mul, Reshape, Softmax, Transpose
from quantglow.ops.binary import Binary
from quantglow.ops.contraction import Contraction
from quantglow.ops.unary import Unary

MIN_BINS = 4
"""Minimum number of distances of a distribution."""


def box_decoders(graph: Graph) -> list[Node]:
    """Integral layers, the moves of logits before them, and the operators from these moves to the
    results, in boxes and in scores, in the order of the graph.
    """
    integrals = {node for node in graph.compute_nodes() if is_integral(node)}
    found = set(integrals)
    for node in integrals:
        found.update(moved_logits(node))
    for node in graph.compute_nodes():
        computed = [o for o in node.operands if not isinstance(o, Constant)]
        if decodes(node) and found.intersection(computed):
            found.add(node)
    return [node for node in graph.compute_nodes() if node in found]


def moves(node: Node) -> bool:
    """Whether a node joins values or gives their elements another place."""
    return isinstance(node, Concat) or node.has(Trait.REARRANGES)


def decodes(node: Node) -> bool:
    """Whether a node may be a step from distributions to boxes and scores."""
    return moves(node) or isinstance(node, Binary | Unary | Softmax)


def is_integral(node: Node) -> bool:
    """Whether a node multiplies a Softmax by distances."""
    match node:
        case Contraction(x=x, w=Constant(value=distances)):
            return is_softmax(x) and distances.shape[-1] == 1 and is_arange(distances)
        case MatMul(x=x, y=Constant(value=distances)) | Mul(x=x, y=Constant(value=distances)):
            return is_softmax(x) and is_arange(distances)
    return False


def is_softmax(node: Node) -> bool:
    """Whether a node is a Softmax, or moves one."""
    while isinstance(node, Reshape | Transpose):
        node = node.x
    return isinstance(node, Softmax)


def is_arange(distances: Array) -> bool:
    """Whether constants are 0, 1, ... n - 1 times a step."""
    flat = distances.reshape(-1)
    step = flat[1] if flat.size > 1 else 0
    steps = np.arange(flat.size) * step
    return bool(flat.size >= MIN_BINS and step > 0 and np.allclose(flat, steps))


def moved_logits(integral: Node) -> Iterator[Node]:
    """The Softmax of an integral layer and all moves between it and the products of its logits."""
    pending, seen = [integral.operands[0]], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen or not (moves(node) or isinstance(node, Softmax)):
            continue
        seen.add(node)
        yield node
        pending += [o for o in node.operands if not isinstance(o, Constant | Input)]
