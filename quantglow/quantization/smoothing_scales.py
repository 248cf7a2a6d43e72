"""Smoothing scales: values scaled channel by channel for the products that read them, and for no
other reader.

SmoothQuant (Xiao et al., 2022, arXiv:2211.10438) divides the result of a LayerNormalization by
factors, and the products behind it take them back.  Networks that normalize after an addition
(BERT, for example) also add that value to another one, so that it cannot itself be divided.  There
a smoothing scale is inserted: a ``Mul`` by a Constant, in float, between the value and the rounding
of the products' input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node, may_change
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Conv, Gemm, LayerNormalization, Mul, Reshape, Transpose
from quantglow.ir.symbolic.size import decide_equal
from quantglow.support.arrays import Array

SUFFIX = ":smooth"
"""Suffix of the name of a smoothing scale, after the name of the value it scales."""


def unscaled_name(name: str) -> str:
    """The name of the value that a smoothing scale reads."""
    return name.removesuffix(SUFFIX)


def with_scaled_names(figures: Mapping[str, Array]) -> dict[str, Array]:
    """The figures of values, and the same ones for their smoothing scales, which are 1 at first."""
    return {f"{name}{SUFFIX}": figure for name, figure in figures.items()} | dict(figures)


def is_smoothing_scale(node: Node) -> bool:
    """Whether a node scales each channel of the result of a LayerNormalization."""
    return (
        isinstance(node, Mul)
        and isinstance(node.x, LayerNormalization)
        and isinstance(node.y, Constant)
        and decide_equal(node.y.type.shape, node.x.type.shape[-1:])
        and not np.isfinite((node.low, node.high)).any()
    )


def with_smoothing_scales(graph: Graph, names: Collection[str] | None = None) -> Graph:
    """The same function with smoothing scales of these names, if they are possible; None: all."""
    results: dict[Node, Node] = {}
    scales: dict[Node, Node] = {}
    scaled_readers: dict[Node, frozenset[Node]] = {}
    new_names = Names.of(graph)
    for node in graph.nodes:
        operands = (
            scales[o] if node in scaled_readers.get(o, ()) else results[o] for o in node.operands
        )
        results[node] = node.with_operands(tuple(operands))
        readers = _products(graph, node) if isinstance(node, LayerNormalization) else frozenset()
        name = node.name + SUFFIX
        is_possible = (names is None or name in names) and name not in new_names.used
        if is_possible and readers and len(readers) < len(set(graph.users[node])):
            scales[node], scaled_readers[node] = _smoothing_scale(results[node], new_names), readers
    return graph.with_outputs(results[node] for _, node in graph.outputs) if scales else graph


def _smoothing_scale(value: Node, names: Names) -> Mul:
    """A smoothing scale of 1 on a value.  ``unscaled_name`` gives the value's name back."""
    ones = np.ones(int(value.type.shape[-1]), np.float32)
    name = names.fresh(value.name + SUFFIX)
    return Mul(name=name, x=value, y=Constant(name=names.fresh(f"{name}:y"), value=ones))


def _products(graph: Graph, value: Node) -> frozenset[Node]:
    """The readers of a value that lead only to products that can take its factors."""
    outputs = {node for _, node in graph.outputs}
    return frozenset(u for u in graph.users[value] if _leads_to_products(graph, value, u, outputs))


def _leads_to_products(graph: Graph, value: Node, user: Node, outputs: Collection[Node]) -> bool:
    if isinstance(user, Conv | Gemm):
        constants = (user.w, user.b) if user.b is not None else (user.w,)
        others = user.operands[1:]
        return value not in others and all(map(may_change, constants))
    if user in outputs or not _keeps_channels(user):
        return False
    return bool(graph.users[user]) and all(
        _leads_to_products(graph, user, later, outputs) for later in graph.users[user]
    )


def _keeps_channels(node: Node) -> bool:
    if isinstance(node, Transpose):
        return node.perm[-1] == node.x.type.rank - 1
    return isinstance(node, Reshape) and decide_equal(node.type.shape[-1:], node.x.type.shape[-1:])
