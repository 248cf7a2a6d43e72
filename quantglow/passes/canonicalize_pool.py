"""One form for the global average: ReduceMean over H and W that keeps the axes."""

from __future__ import annotations

from dataclasses import replace

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.pooling import AveragePool, ReduceMean
from quantglow.ops.shape import Reshape
from quantglow.passes.layout import derived


@rewrite_pass("canonicalize-pool")
def canonicalize_pool(node: Node, uses: Uses) -> Node | None:
    """AveragePool of the whole image, ReduceMean without keepdims -> ReduceMean(axes=(1, 2))"""
    match node:
        case AveragePool(x=x, out=None) if covers(node):
            return ReduceMean(name=node.name, x=x, axes=(1, 2))
        case ReduceMean(axes=(1, 2), keepdims=False) if node.x.type.rank == 4:
            mean = replace(node, keepdims=True)
            name = uses.fresh(derived(node.name, ":r"))
            return Reshape(name=name, x=mean, shape=node.type.shape)
    return None


def covers(node: AveragePool) -> bool:
    """Whether the only window is exactly the image."""
    whole = node.kernel == node.x.type.shape[1:3] and node.dilations == (1, 1)
    return whole and not any(node.pads) and node.type.shape[1:3] == (1, 1)
