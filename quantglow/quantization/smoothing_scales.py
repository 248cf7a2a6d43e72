"""Values scaled channel by channel for the products that read them, and for no other reader.

SmoothQuant divides what a LayerNormalization gives by factors that the products behind it take
back.  In networks that add that value to another one too (BERT and its kin normalize after the
addition) it cannot itself be divided.  A tap can: a product with a constant, in float, between the
value and the rounding of what the products read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Constant, Node
from quantglow.ops import Conv, Gemm, LayerNormalization, Mul, Reshape, Transpose
from quantglow.types import Array

SUFFIX = ":smooth"
"""Of the name of a tap, behind that of the value."""


def tapped_name(tap: str) -> str:
    """The name of the value behind which a tap is."""
    return tap.removesuffix(SUFFIX)


def with_taps(figures: Mapping[str, Array]) -> dict[str, Array]:
    """What is known of values, and of taps behind them, which are equal before they get factors."""
    return {f"{name}{SUFFIX}": figure for name, figure in figures.items()} | dict(figures)


def is_tap(node: Node) -> bool:
    """Whether a node scales each channel of what a LayerNormalization gives."""
    return (
        isinstance(node, Mul)
        and isinstance(node.x, LayerNormalization)
        and isinstance(node.y, Constant)
        and node.y.type.shape == node.x.type.shape[-1:]
        and not np.isfinite((node.low, node.high)).any()
    )


def tapped(graph: Graph, names: Collection[str] | None = None) -> Graph:
    """The same function with taps of these names, where they are possible; None: with all."""
    made: dict[Node, Node] = {}
    taps: dict[Node, Node] = {}
    behind: dict[Node, frozenset[Node]] = {}
    new_names = Names.of(graph)
    for node in graph.nodes:
        operands = (taps[o] if node in behind.get(o, ()) else made[o] for o in node.operands)
        made[node] = node.with_operands(tuple(operands))
        readers = _products(graph, node) if isinstance(node, LayerNormalization) else frozenset()
        tap = node.name + SUFFIX
        wanted = (names is None or tap in names) and tap not in new_names.taken
        if wanted and readers and len(readers) < len(set(graph.users[node])):
            taps[node], behind[node] = _tap(made[node], new_names), readers
    return graph.with_outputs(made[node] for _, node in graph.outputs) if taps else graph


def _tap(value: Node, names: Names) -> Mul:
    """The tap of a value; its name is free, and tells the value (see ``tapped_name``)."""
    ones = np.ones(value.type.shape[-1], np.float32)
    name = names.fresh(value.name + SUFFIX)
    return Mul(name=name, x=value, y=Constant(name=names.fresh(f"{name}:y"), value=ones))


def _products(graph: Graph, value: Node) -> frozenset[Node]:
    """The readers of a value behind which there are only products that can take its factors."""
    outputs = {node for _, node in graph.outputs}
    return frozenset(u for u in graph.users[value] if _leads_to_products(graph, value, u, outputs))


def _leads_to_products(graph: Graph, value: Node, user: Node, outputs: Collection[Node]) -> bool:
    if isinstance(user, Conv | Gemm):
        constants = (user.w, user.b) if user.b is not None else (user.w,)
        others = user.operands[1:]
        return value not in others and all(isinstance(c, Constant) for c in constants)
    if user in outputs or not _keeps_channels(user):
        return False
    return bool(graph.users[user]) and all(
        _leads_to_products(graph, user, later, outputs) for later in graph.users[user]
    )


def _keeps_channels(node: Node) -> bool:
    if isinstance(node, Transpose):
        return node.perm[-1] == node.x.type.rank - 1
    return isinstance(node, Reshape) and node.type.shape[-1:] == node.x.type.shape[-1:]
