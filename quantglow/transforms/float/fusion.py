"""Fusion of activations and residual sums into the operators before them.

Relu, Clip and cheap functions are fused after BatchNormalization is folded, never before.  The Add
that ends a residual block goes into the convolution before it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.activation import Activation
from quantglow.ir.ops.binary import Add, Max, Min, Mul, Sub
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import Conv, ConvTranspose
from quantglow.ir.ops.unary import Clip, Fusible, Relu
from quantglow.ir.ops.work import FEWEST_PRODUCTS
from quantglow.ir.symbolic.size import decide_equal
from quantglow.transforms.float.arithmetic import narrow, node_bounds, plain
from quantglow.transforms.float.constant_folding import (
    absorbs,
    is_float,
    scalar_constant,
)
from quantglow.transforms.rewrite import RewritePass, Uses, decline, rewrite_pass

UNBOUNDED = (-math.inf, math.inf)


@rewrite_pass("fuse-activation")
def fuse_activation(node: Node, uses: Uses) -> Node | None:
    """Clip(Conv(…), low, high) -> Conv(…, low, high), likewise Gemm, Add, Sub, Mul, Max, Min;
    HardSwish(Conv(…)) * c + d -> Conv(…, activation), likewise Gemm and HardSigmoid, LeakyRelu,
    where a result is a sum of ``FEWEST_PRODUCTS``"""
    x = node.operands[0] if isinstance(node, Fusible) else None
    if isinstance(x, Contraction) and _count_products(x) < FEWEST_PRODUCTS:
        return decline(node, f"{x.name!r} sums only {_count_products(x)} products")
    return _fuse(node, uses)


@rewrite_pass("fuse-float-activation")
def fuse_float_activation(node: Node, uses: Uses) -> Node | None:
    """HardSwish(Conv(…)) * c + d -> Conv(…, activation), then its bounds, as ``fuse-activation``,
    however few the products: for sums that nothing will round before the function, so that no table
    could replace it."""
    if isinstance(node, Relu | Clip) and getattr(node.x, "activation", None) is None:
        return None
    return _fuse(node, uses) if node.type.dtype.is_float else None


def fuse_functions(graph: Graph, names: Collection[str]) -> Graph:
    """As ``fuse-activation``, however few the products, for the functions of these ``names``."""

    def rule(node: Node, uses: Uses) -> Node | None:
        left = isinstance(node, Fusible) and node.name not in names
        return None if left else _fuse(node, uses)

    return RewritePass("fuse-functions", rule)(graph) if names else graph


def _count_products(node: Contraction) -> int:
    """Products that a result is the sum of: kernel area times input channels of a group; of a
    ConvTranspose those that meet in one place."""
    weights = node.w.type.fixed_shape
    products = math.prod(weights) // max(weights[-1], 1)
    return products // math.prod(node.strides) if isinstance(node, ConvTranspose) else products


def _fuse(node: Node, uses: Uses) -> Node | None:
    """The producer with ``node`` fused into it, None if it cannot take it."""
    producer = node.operands[0] if node.operands else None
    if isinstance(node, Relu | Clip):
        return _with_bounds(node, node.x) if _may_have_bounds(node, uses) else None
    if not isinstance(producer, Contraction) or not producer.type.dtype.is_float:
        return None
    if not (uses.only(node, producer) if isinstance(node, Fusible) else uses.single(producer)):
        return None
    try:
        activation = _activate(node, producer)
    except ValueError:  # numbers beyond float32
        return None
    if activation is None or node.type != producer.type:
        return None
    changes: dict[str, Any] = {"name": node.name, "activation": activation}
    return replace(producer, **changes)


def _may_have_bounds(node: Relu | Clip, uses: Uses) -> bool:
    """Whether the operator before ``node`` takes bounds, and ``node`` alone reads it."""
    return isinstance(node.x, Contraction | Add | Sub | Mul | Max | Min) and uses.only(node, node.x)


def _with_bounds(node: Relu | Clip, producer: Any) -> Node:
    """The producer with the bounds of ``node``."""
    outer = node_bounds(node)
    assert outer is not None
    low, high = narrow((producer.low, producer.high), outer)
    changes: dict[str, Any] = {"name": node.name, "low": low, "high": high}
    bounded: Node = replace(producer, **changes)
    return bounded


def _activate(node: Node, producer: Contraction) -> Activation | None:
    """The activation of the producer with ``node`` behind it.  Raises ``ValueError``."""
    if isinstance(node, Fusible):
        return Activation.of(node) if producer.is_bare else None
    activation, unbounded = producer.activation, (producer.low, producer.high) == UNBOUNDED
    if activation is None or not unbounded or not isinstance(node, Add | Mul) or not plain(node):
        return None
    c = scalar_constant(node.y)
    if c is None:
        return None
    return activation.scaled(c) if isinstance(node, Mul) else activation.moved(c)


@rewrite_pass("fuse-residual")
def fuse_residual(node: Node, uses: Uses) -> Node | None:
    """Add(r, Conv(x)) -> Conv(x, residual=r) with the bounds of the Add.

    If both operands are convolutions, the right one takes the left one as its residual: a graph
    computes operands in order, so the left one is already there.  A Constant has the shape of the
    result at batch 1 only, and int8 must be the same at all.
    """
    if not isinstance(node, Add) or node.out is not None:
        return None
    for conv, other in ((node.y, node.x), (node.x, node.y)):
        if not isinstance(conv, Conv) or not absorbs(conv, node, uses) or conv is other:
            continue
        is_alike = decide_equal(conv.type.shape, other.type.shape) and is_float(other)
        if is_alike and not isinstance(other, Constant):
            return replace(conv, name=node.name, residual=other, low=node.low, high=node.high)
        decline(node, f"{other.name!r} is broadcast, constant, no float or infinite")
    return None
