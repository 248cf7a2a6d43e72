"""``Transpose(f(x)) -> f'(Transpose(x))`` for Transposes to channels-last: move them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantglow.graph.graph import Graph
from quantglow.graph.names import Names
from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses
from quantglow.ops.quantization import Table
from quantglow.ops.shape import Expand, Reshape, Transpose
from quantglow.passes.blocks import blocks_of, consecutive, spread
from quantglow.passes.layout import (
    Axes,
    derived,
    inverse,
    is_identity,
    moved,
    per_axis,
    permuted,
    to_channels_last,
)


@dataclass(frozen=True)
class HoistTranspose:
    """f(x) -> Transpose(f'(Transpose(x))) where a reader of f(x) wants it channels-last.

    The outer Transpose cancels against that reader's; for other readers it sinks.  The inner ones
    climb to the producers, in the end to the inputs of the graph.
    """

    name: str = "hoist-transpose"

    def __call__(self, graph: Graph) -> Graph:
        uses = Uses(names=Names.of(graph))
        wanted = {
            node.x: node.perm
            for node in graph.nodes
            if isinstance(node, Transpose) and to_channels_last(node.perm)
        }
        return graph.rebuild(in_step(graph, lambda node, new: hoisted(new, wanted.get(node), uses)))


def in_step(graph: Graph, rule: Callable[[Node, Node], Node]) -> Callable[[Node], Node]:
    """A rule for ``rebuild`` that is also given the node of the graph as it was."""
    originals = iter(graph.nodes)
    return lambda new: rule(next(originals), new)


def hoisted(f: Node, perm: Axes | None, uses: Uses) -> Node:
    """The node in channels-last and transposed back; the node itself where that gains nothing."""
    if isinstance(f, Transpose) and perm is None:
        return cancelled(f)
    if perm is None or per_axis(f) or any(per_axis(operand) for operand in f.operands):
        return f
    made = above(f, perm, uses)
    if made is None:
        return f
    return Transpose(name=uses.fresh(derived(f.name, ":nchw")), x=made, perm=inverse(perm))


def cancelled(node: Transpose) -> Node:
    """Transpose(Transpose(x)) that moves nothing is x."""
    inner = node.x
    cancels = isinstance(inner, Transpose) and is_identity(permuted(inner.perm, node.perm))
    return inner.x if cancels and isinstance(inner, Transpose) else node


def above(f: Node, perm: Axes, uses: Uses) -> Node | None:
    """``Transpose(f, perm)`` with the Transpose moved to the operands of f."""
    match f:
        case Reshape():
            return above_reshape(f, perm, uses)
        case Expand():
            return None  # Its operand is smaller than its result.
        case Table(x=x, table=table):
            return f.with_operands((moved(x, perm, uses), table))
    changes = f.permuted(perm)
    if changes is None:
        return None
    operands = tuple(moved(x, perm, uses) for x in f.operands)
    return f.with_operands(operands, **changes)


def above_reshape(f: Reshape, perm: Axes, uses: Uses) -> Node | None:
    """The Reshape on an operand whose blocks of axes are moved already."""
    if not f.type.size:
        return None
    position = {axis: i for i, axis in enumerate(a for a in perm if f.shape[a] != 1)}
    blocks = blocks_of(f.x.type.shape, f.shape)
    if not all(consecutive(tuple(position[a] for a in b.target)) for b in blocks):
        return None
    ordered = sorted(blocks, key=lambda b: position[b.target[0]])
    order = spread(tuple(axis for b in ordered for axis in b.source), f.x.type.shape)
    x = f.x
    if not is_identity(order):
        x = Transpose(name=uses.fresh(derived(f.name, ":nhwc")), x=x, perm=order)
    return replace(f, x=x, shape=permuted(f.shape, perm))


hoist_transpose = HoistTranspose()
