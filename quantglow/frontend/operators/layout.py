"""ONNX images are channels-first, the graph's channels-last: transposes around spatial ops.

An op on values of rank 3 (one spatial axis) runs as an image of height 1.
"""

from __future__ import annotations

from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.graph.node import Node
from quantglow.ops.shape import Reshape, Transpose


def to_nhwc(call: Call, x: Node | None = None) -> Node:
    """The first operand [N, C, H, W] as [N, H, W, C]; [N, C, L] as [N, 1, L, C].

    ``x``: what the operator reads in its place.
    """
    x = x or call.node(0)
    if x.type.rank == 3:
        x = as_image(call, x, call.value_name(0))
    if x.type.rank != 4:
        raise Unsupported(f"{x.type.rank - 2} spatial axes are too many")
    return channels_last(call, x, call.value_name(0))


def as_image(call: Call, x: Node, value_name: str) -> Node:
    """[N, C, L] as [N, C, 1, L].  Shared by all readers."""
    n, c, length = x.type.shape
    name = f"{value_name}:2d"
    return call.scope.share(
        x, "2d", lambda: Reshape(name=call.scope.claim(name, True), x=x, shape=(n, c, 1, length))
    )


def from_nhwc(call: Call, y: Node) -> Node:
    """[N, H, W, C] back to the ONNX layout, of the rank of the first operand."""
    result: Node = channels_first(call, y)
    if len(call.shape(0)) == 3:
        n, c, _, length = result.type.shape
        result = Reshape(name=call.derived("1d"), x=result, shape=(n, c, length))
    return result


def channels_last(call: Call, x: Node, value_name: str) -> Node:
    """Axis 1 moved to the end; ``x`` itself where it is there already.  Shared by all readers."""
    rank = x.type.rank
    if rank <= 2:
        return x
    perm = (0, *range(2, rank), 1)
    name = f"{value_name}:nhwc"
    return call.scope.share(
        x, "nhwc", lambda: Transpose(name=call.scope.claim(name, True), x=x, perm=perm)
    )


def channels_first(call: Call, y: Node) -> Node:
    """The last axis moved to position 1; ``y`` itself where it is there already."""
    rank = y.type.rank
    if rank <= 2:
        return y
    return Transpose(name=call.derived("nchw"), x=y, perm=(0, rank - 1, *range(1, rank - 1)))
