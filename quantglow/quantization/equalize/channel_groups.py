"""Groups of values of a float graph that may be rescaled channel by channel without changing its
function.

A channel of a convolution's result may be divided by any factor if its readers multiply by the
same one.  Values that need equal factors (through an addition, Relu, pooling) form a group.  A
group cannot be rescaled if an operator in it is not homogeneous (HardSwish), or if it holds an
input or output of the graph.  The last axis is the channel axis throughout.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, may_change
from quantglow.ir.ops import (
    Add,
    AveragePool,
    Clip,
    Conv,
    Gemm,
    LayerNormalization,
    MaxPool,
    Mul,
    Pad,
    ReduceMean,
    Relu,
    Reshape,
    Resize,
    Transpose,
)
from quantglow.ir.symbolic.size import decide, decide_equal, prod
from quantglow.profiling.specials import brought
from quantglow.quantization.plan.fourier_transforms import is_fourier, transforms
from quantglow.quantization.plan.params import UnionFind
from quantglow.quantization.smoothing_scales import is_smoothing_scale

PRODUCERS = (Conv, Gemm, LayerNormalization)
"""Operators whose constants can take the factors of their result."""


def channel_groups(graph: Graph) -> list[list[Node]]:
    """The groups of values that can be rescaled, each in the order of the graph."""
    nodes = [node for node in graph.nodes if not isinstance(node, Constant)]
    groups = UnionFind(nodes)
    fixed = {node for _, node in graph.outputs if node in groups} | transforms(graph)
    for node in nodes:
        joined = tuple(o for o in _joined_operands(node) if o in groups)
        fixed.update(_fixed_values(node, joined))
        for operand in joined:
            groups.join(node, operand)
    unusable = {groups.find(node) for node in fixed}
    members: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        if groups.find(node) not in unusable:
            members[groups.find(node)].append(node)
    return list(members.values())


def takes_factors(node: Node) -> bool:
    """Whether the node is a producer with constant, finite weights, and no Fourier transform."""
    return is_smoothing_scale(node) or (
        isinstance(node, PRODUCERS)
        and all(may_change(o) and not brought(o) for o in _producer_constants(node))
        and not is_fourier(node)
    )


def _producer_constants(node: Node) -> Iterator[Node]:
    """The operands of a producer that must be Constants to take factors."""
    if isinstance(node, LayerNormalization):
        yield from (o for o in (node.gamma, node.beta) if o is not None)
    elif isinstance(node, Conv | Gemm):
        yield from (o for o in (node.w, node.b) if o is not None)


def _joined_operands(node: Node) -> tuple[Node, ...]:
    """Operands that must have the factors of the node's result."""
    if is_smoothing_scale(node):
        return ()
    if isinstance(node, Conv) and node.residual is not None:
        return (node.residual,)
    if isinstance(node, Add):
        x, y, result = node.x.type.shape, node.y.type.shape, node.type.shape
        same = decide_equal(x, y) and decide_equal(y, result)
        whole = same and not any(isinstance(o, Constant) for o in node.operands)
        return (node.x, node.y) if whole and _homogeneous(node) else ()
    if isinstance(node, Mul):
        gated = decide_equal(node.x.type.shape, node.type.shape) and _is_gate(node)
        return (node.x,) if gated and _homogeneous(node) else ()
    if isinstance(node, Relu | MaxPool | AveragePool | Resize):
        return (node.x,)
    if isinstance(node, Clip | Pad | ReduceMean | Reshape | Transpose) and _keeps_channels(node):
        return (node.x,)
    return ()


def _is_gate(node: Mul) -> bool:
    """Whether y has at most one value for each channel, also at shapes where x has no more."""
    gate = node.y.type
    pooled = gate.rank > 2 and decide(prod(gate.shape[1:-1]) == 1)
    return pooled or decide(gate.size < node.type.size)


def _keeps_channels(node: Clip | Pad | ReduceMean | Reshape | Transpose) -> bool:
    """Whether channel c of the result depends on channel c of x alone, homogeneously."""
    x, last = node.x.type, node.x.type.rank - 1
    if isinstance(node, Clip):
        return _homogeneous(node)
    if isinstance(node, ReduceMean):
        return last not in node.axes
    if isinstance(node, Transpose):
        return node.perm[-1] == last
    if isinstance(node, Pad):
        return decide(node.type.shape[-1] == x.shape[-1]) and node.value == 0
    return x.rank > 0 and node.type.rank > 0 and decide(node.type.shape[-1] == x.shape[-1])


def _homogeneous(node: Add | Clip | Conv | Gemm | Mul) -> bool:
    """Whether the bounds and the activation of a node commute with a positive factor."""
    activation = node.activation if isinstance(node, Conv | Gemm) else None
    if activation is not None and not activation.homogeneous:
        return False
    # max(s x, 0) = s max(x, 0) for s > 0; another bound would have to be scaled, too.
    return node.low in (0.0, -math.inf) and node.high == math.inf


def is_bounded(node: Node) -> bool:
    """Whether a producer clips at [0, high]: its factors must leave ``high`` out of reach."""
    if not isinstance(node, Conv | Gemm) or node.activation is not None:
        return False
    return node.low == 0 and 0 < node.high < math.inf


def upper_bound(node: Any) -> float:
    """The upper bound of a producer."""
    return float(node.high)


def _fixed_values(node: Node, joined: tuple[Node, ...]) -> Iterator[Node]:
    """Values that this node keeps from being rescaled."""
    reads = [operand for operand in node.operands if operand not in joined]
    if takes_factors(node):
        if isinstance(node, Conv | Gemm) and not (_homogeneous(node) or is_bounded(node)):
            yield node
        # A LayerNormalization divides by the deviation of its input.
        reads = [node.x] if isinstance(node, LayerNormalization) else []
        yield from reads
        return
    if not joined:
        yield node
    yield from (operand for operand in reads if not isinstance(operand, Constant))
