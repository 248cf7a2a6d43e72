"""Gather of any axis becomes Gather of the middle axis of [outer, rows, inner]; Scatter and TopK
work on rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from quantglow.graph.node import Node
from quantglow.lowering.rules import lowers, tag
from quantglow.ops import Gather, Reshape, Scatter, TopK


@lowers(Gather)
def lower_gather(node: Gather) -> Node | None:
    """Gather(x, indices, axis) -> Reshape(Gather(x as [outer, rows, inner], flat indices, 1))"""
    shape, indices = node.x.type.shape, node.indices.type
    if len(shape) == 3 and node.axis == 1 and indices.rank == 1:
        return None
    outer, inner = math.prod(shape[: node.axis]), math.prod(shape[node.axis + 1 :])
    core = Gather(
        name=tag(node, "gathered"),
        x=Reshape(name=tag(node, "rows"), x=node.x, shape=(outer, shape[node.axis], inner)),
        indices=Reshape(name=tag(node, "flat"), x=node.indices, shape=(indices.size,)),
        axis=1,
    )
    return Reshape(name=node.name, x=core, shape=node.type.shape)


@lowers(Scatter)
def lower_scatter(node: Scatter) -> Node | None:
    """Scatter of any rank -> Scatter of rows"""
    if node.x.type.rank == 2:
        return None
    rows, inner = node.x.type.shape[0], math.prod(node.x.type.shape[1:])
    updates = (node.indices.type.size, inner)
    changes: dict[str, Any] = {
        "x": Reshape(name=tag(node, "rows"), x=node.x, shape=(rows, inner)),
        "updates": Reshape(name=tag(node, "new"), x=node.updates, shape=updates),
    }
    core = replace(node, name=tag(node, "scattered"), **changes)
    return Reshape(name=node.name, x=core, shape=node.type.shape)


@lowers(TopK)
def lower_top_k(node: TopK) -> Node | None:
    """TopK of any rank -> TopK of rows"""
    if node.x.type.rank == 2:
        return None
    length = node.x.type.shape[-1]
    x = Reshape(name=tag(node, "rows"), x=node.x, shape=(node.x.type.size // length, length))
    core = replace(node, name=tag(node, "chosen"), x=x)
    return Reshape(name=node.name, x=core, shape=node.type.shape)
