"""Equalization: float graphs rescaled channel by channel, with new weight constants.

Layers share Constants: ``eliminate-common-subexpressions`` merges equal ones, and an ONNX model may
give one initializer to many layers.  A new value for one layer is a new Constant, whose name no
other node has.

=================== ======================================================== ======================
technique           where                                                    source
=================== ======================================================== ======================
equalize-channels   between convolutions: through Relu, Clip, depthwise      DFQ, 2019
                    convolutions, additions, pooling
smooth-activations  between a LayerNormalization and the products behind it,  SmoothQuant, 2022
                    by a ``smoothing_scales`` node if others read it
mix-channels        between convolutions without activation: ``channel_mixing``  QuaRot, 2024
align-inputs        between an input and convolutions: ``input_grid``
fuse-functions      between a layer and a cheap function: ``search.time_budget``
=================== ======================================================== ======================

Cross-layer equalization (Nagel et al., 2019, arXiv:1906.04721, section 4.1) and SmoothQuant (Xiao
et al., 2022, arXiv:2211.10438) rest on one identity: for positive factors s by channel

    W2 f(W1 x + b1) = (W2 s) f((W1 x + b1) / s),      f(z s) = s f(z)

Since the weights of a channel have a scale of their own, ``W1 / s`` costs nothing, and neither does
``W2 s`` behind a depthwise convolution.  Elsewhere ``W2 s`` makes rows of one scale differ, so that

    s = a**alpha / w**(1 - alpha),     a: reach of the activation, w: of the weights that read it

A bound [0, high] would become one for each channel.  Here it stays: the factors are chosen so that
nothing within ``MARGIN`` times the calibrated reach meets it, which is also where 8 bits would end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.graph.origins import Names
from quantglow.ir.ops import Conv, Gemm, LayerNormalization, Mul
from quantglow.quantization.equalize.channel_groups import (
    channel_groups,
    is_bounded,
    takes_factors,
    upper_bound,
)
from quantglow.quantization.smoothing_scales import is_smoothing_scale, with_smoothing_scales
from quantglow.support.arrays import Array

Factors = Mapping[str, Array]
"""Value name -> the factor of each channel [C], or the matrix [C, C] of ``channel_mixing``: the old
value is that times the new one."""

MARGIN = 1.25
"""Largest value that a channel under a Clip may have without being cut, over its calibrated
reach."""

MAX_RATIO = 16.0
"""Maximum ratio between the factors of a tensor: a channel with few calibrated values stays
coarse."""

ALPHA = 0.75
SMOOTH_ALPHA = 0.5
"""Share of the difference that moves from the activations to the weights, for convolutions and
behind a LayerNormalization."""


def equalization_factors(
    graph: Graph,
    reach: Mapping[str, Array],
    techniques: Collection[str],
    scarce: frozenset[str] = frozenset(),
) -> Factors:
    """The factors that ``techniques`` choose; ``reach``: value name -> max |x| by channel.

    ``scarce``: values seen too rarely to know the reach of their channels.  A group of only such
    values stays as it is.  So does a group with a value that is infinite somewhere, or that no
    sample computed, because its branch was not taken.
    """
    factors: dict[str, Array] = {}
    for group in groups_to_scale(graph, techniques):
        names = {node.name for node in group}
        measured = {name for name in names & reach.keys() if np.isfinite(reach[name]).all()}
        if measured == names and not names <= scarce:
            alpha = SMOOTH_ALPHA if _is_smooth(group) else ALPHA
            chosen = _factors(graph, group, reach, alpha)
            factors |= {node.name: chosen for node in group}
    return factors


def groups_to_scale(graph: Graph, techniques: Collection[str]) -> list[list[Node]]:
    """The groups of values that ``techniques`` give factors."""
    return [
        group
        for group in channel_groups(graph)
        if ("smooth-activations" if _is_smooth(group) else "equalize-channels") in techniques
    ]


def _is_smooth(group: Sequence[Node]) -> bool:
    return any(isinstance(node, LayerNormalization) or is_smoothing_scale(node) for node in group)


def _factors(
    graph: Graph, group: Sequence[Node], reach: Mapping[str, Array], alpha: float
) -> Array:
    """float32 [C], at most 1; the largest is 1 unless a bound requires less."""
    # log s = alpha log a - (1 - alpha) log w, of geometric means over the values and their readers.
    needs = [_relative(reach[n.name]) for n in group]
    rows = [r for n in group for u in graph.users[n] if (r := _read_rows(n, u)) is not None]
    logs = np.mean([np.log(need) for need in needs], axis=0)
    if rows:
        logs = alpha * logs - (1 - alpha) * np.mean([np.log(_relative(r)) for r in rows], axis=0)
    chosen = np.exp(logs - logs.max())
    for node in group:
        if is_bounded(node):
            least = np.minimum(MARGIN * reach[node.name] / upper_bound(node), 1.0)
            chosen = np.maximum(chosen, least)
    return np.asarray(chosen, np.float32)


def _relative(reach: Array) -> Array:
    """The reach of each channel over the largest, at least ``1 / MAX_RATIO``."""
    top = float(reach.max(initial=0.0))
    shares = reach.astype(np.float64) / top if top > 0 else np.ones(reach.shape)
    return np.asarray(np.maximum(shares, 1 / MAX_RATIO))


def _read_rows(value: Node, user: Node) -> Array | None:
    """For each channel of ``value`` the largest weight that reads it, over the largest of the
    weight's output; None where the weights of a channel have a scale of their own.
    """
    if isinstance(user, Conv) and user.x is value and takes_factors(user) and not user.depthwise:
        return _rows(user.w, user.group)
    if isinstance(user, Gemm) and user.x is value and takes_factors(user):
        return _rows(user.w, 1)
    return None


def _rows(w: Any, group: int) -> Array:
    """[C] from weights [..., C/group, O]."""
    values = np.abs(w.value.reshape(-1, *w.value.shape[-2:])).max(axis=0)
    shares = values / np.maximum(values.max(axis=0), np.finfo(np.float32).tiny)
    by_group = shares.reshape(shares.shape[0], group, -1)
    return np.asarray(by_group.max(axis=2).T.reshape(-1))


def rescale(graph: Graph, factors: Factors, before: tuple[Graph, Factors] | None = None) -> Graph:
    """The same function with every value of ``factors`` divided by its factors, and all values of
    its group (at another shape there may be others).  Smoothing scales that factors name are added.

    ``before``: the result for ``graph`` with other factors, and these.  Constants of nodes whose
    factors are the same objects are taken from it, and whole nodes that are equal.
    """
    graph = with_smoothing_scales(graph, factors)
    factors = _by_group(graph, factors)
    if not factors:
        return graph
    results: dict[Node, Node] = {}
    owner = ConstantOwner.of(graph)
    earlier = {node.name: node for node in before[0].nodes} if before else {}
    for node in graph.nodes:
        moved = node.with_operands(tuple(results[operand] for operand in node.operands))
        if takes_factors(node):
            twin = _twin(node, factors, *before) if before else None
            moved = _like(moved, twin) if twin else _rescale_node(node, moved, factors, owner)
        results[node] = _reuse(moved, earlier.get(moved.name))
    return graph.with_outputs(results[node] for _, node in graph.outputs)


def unscalable(graph: Graph, factors: Factors) -> set[str]:
    """The values of ``factors`` that the graph has but that cannot be rescaled in it: a Reshape
    keeps channels apart at one shape and not at another.
    """
    graph = with_smoothing_scales(graph, factors)
    return {node.name for node in graph.nodes} & factors.keys() - _by_group(graph, factors).keys()


def _twin(node: Any, factors: Factors, graph: Graph, others: Factors) -> Node | None:
    """The node of ``graph`` with the constants that these factors give, if it has them."""
    same = all(factors.get(name) is others.get(name) for name in (node.name, node.x.name))
    return graph.by_name(node.name) if same else None


def _reuse(node: Node, twin: Node | None) -> Node:
    """``twin`` where it is the same operator on the same operands, else the node."""
    if twin is None or type(twin) is not type(node) or isinstance(node, Constant):
        return node
    pairs = zip(twin.operands, node.operands, strict=False)
    same = len(twin.operands) == len(node.operands) and all(a is b for a, b in pairs)
    return twin if same and twin.attributes() == node.attributes() else node


def _like(node: Any, twin: Any) -> Node:
    """The node with the constants of its twin."""
    names = {LayerNormalization: ("gamma", "beta"), Mul: ("y",)}.get(type(node), ("w", "b"))
    return replace(node, **{name: getattr(twin, name) for name in names})  # type: ignore[no-any-return]


def _by_group(graph: Graph, factors: Factors) -> Factors:
    by_value: dict[str, Array] = {}
    for group in channel_groups(graph) if factors else ():
        shared = next((factors[node.name] for node in group if node.name in factors), None)
        if shared is not None:
            by_value |= {node.name: shared for node in group}
    return by_value


def _rescale_node(node: Any, moved: Any, factors: Factors, owner: ConstantOwner) -> Node:
    """The producer with factors in its constants."""
    out = factors.get(node.name)
    if isinstance(node, LayerNormalization):
        factor = None if out is None else 1 / out.astype(np.float64)
        return moved if factor is None else _normalization(node, moved, factor, owner)
    read = factors.get(node.x.name)
    if out is None and read is None:
        return node if moved is node else moved  # type: ignore[no-any-return]
    if isinstance(node, Mul):
        return _smoothing_scale(node, moved, out, read, owner)
    w = node.w.value if read is None else _read_through(node, read)
    changes = {"w": owner.constant(node, "w", w if out is None else divide_channels(w, out))}
    if node.b is not None and out is not None:
        changes["b"] = owner.constant(node, "b", divide_channels(node.b.value, out))
    return replace(moved, **changes)  # type: ignore[no-any-return]


def _read_through(node: Any, factors: Array) -> Array:
    """Weights that read ``values / factors`` instead of the values."""
    if factors.ndim == 1:
        return np.asarray(node.w.value * by_row(factors, node))
    return np.asarray(factors.astype(np.float64).T @ node.w.value)


def divide_channels(values: Array, factors: Array) -> Array:
    """``values`` [..., C] over the factors."""
    if factors.ndim == 1:
        return np.asarray(values / factors)
    return np.asarray(values @ np.linalg.inv(factors.astype(np.float64)).T)


def _smoothing_scale(
    node: Any, moved: Any, out: Array | None, read: Array | None, owner: ConstantOwner
) -> Node:
    y = node.y.value * (1 if read is None else read) / (1 if out is None else out)
    return replace(moved, y=owner.constant(node, "y", y))  # type: ignore[no-any-return]


def by_row(factors: Array, node: Conv | Gemm) -> Array:
    """Factors in a shape that multiplies weights [..., C/group, O]."""
    group = node.group if isinstance(node, Conv) else 1
    if group == 1:
        return factors[:, None]
    return np.repeat(factors.reshape(group, -1).T, int(node.w.type.shape[-1]) // group, axis=1)


def _normalization(
    node: LayerNormalization, moved: Any, factor: Array, owner: ConstantOwner
) -> Node:
    gamma = factor if node.gamma is None else node.gamma.value * factor  # type: ignore[attr-defined]
    changes = {"gamma": owner.constant(node, "gamma", gamma)}
    if isinstance(node.beta, Constant):
        changes["beta"] = owner.constant(node, "beta", node.beta.value * factor)
    return replace(moved, **changes)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ConstantOwner:
    """Names new Constants after the nodes of ``graph`` that read them.

    The name depends on the graph, the node and the operand only, so that Constants of several
    graphs made from this one go together.
    """

    graph: Graph
    names: Names

    @staticmethod
    def of(graph: Graph) -> ConstantOwner:
        """For one traversal of the graph: each operand of a node gets one Constant."""
        return ConstantOwner(graph, Names.of(graph))

    def constant(self, node: Node, operand: str, value: Array) -> Constant:
        """The new Constant of one node.  It keeps the name of the old one if only this node read
        that.
        """
        old: Node | None = getattr(node, operand)
        alone = old is not None and self.graph.use_counts[old] == 1
        name = old.name if old and alone else self.names.fresh(f"{node.name}:{operand}")
        return Constant(name=name, value=value.astype(np.float32, copy=False))
