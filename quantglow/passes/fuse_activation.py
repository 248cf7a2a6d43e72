"""Relu and Clip as bounds of the operator before them.  After fold_batch_norm, never before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantglow.graph.node import Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops.binary import Add, Max, Min, Mul, Sub
from quantglow.ops.convolution import Contraction
from quantglow.ops.unary import Clip, Relu
from quantglow.passes.merge_clips import bounds_of, narrowed


@rewrite_pass("fuse-activation")
def fuse_activation(node: Node, uses: Uses) -> Node | None:
    """Clip(Conv(…), low, high) -> Conv(…, low, high), likewise Gemm, Add, Sub, Mul, Max, Min"""
    if not isinstance(node, Relu | Clip) or not uses.single(node.x):
        return None
    producer = node.x
    if not isinstance(producer, Contraction | Add | Sub | Mul | Max | Min):
        return None
    outer = bounds_of(node)
    assert outer is not None
    low, high = narrowed((producer.low, producer.high), outer)
    changes: dict[str, Any] = {"name": node.name, "low": low, "high": high}
    return replace(producer, **changes)
