"""Helpers of the passes that compute with Constants."""

from __future__ import annotations

import math

import numpy as np

from quantglow.ir.graph.node import Constant, Node, may_change
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.convolution import Conv
from quantglow.support.arrays import Array
from quantglow.transforms.rewrite import Uses, decline


def float_constant(value: object, name: str, uses: Uses) -> Constant:
    """A float32 Constant under a name derived from ``name``."""
    return Constant(name=uses.fresh(name), value=np.asarray(value, np.float32, order="C"))


def is_infinite(node: Node) -> bool:
    """Whether the node is a Constant with an infinity."""
    return isinstance(node, Constant) and any(map(math.isinf, node.extremes))


def is_float(node: Node) -> bool:
    return node.type.dtype.is_float


def scalar_constant(node: Node) -> float | None:
    """The value of a float Constant with one element."""
    if isinstance(node, Constant) and node.type.size == 1 and is_float(node):
        return float(node.value.reshape(()))
    return None


def is_scalar(node: Node, value: float) -> bool:
    """Whether the node is a Constant close to ``value``: exporters write 1/sqrt(2) in many ways."""
    scalar = scalar_constant(node)
    return scalar is not None and close(scalar, value)


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * abs(b)


def channel_values(node: Node, channels: int, rank: int) -> Array | None:
    """A Constant that varies at most along the last axis, as an array [channels]."""
    if not isinstance(node, Constant) or not is_float(node) or node.type.rank > rank:
        return None
    if node.type.size == 1:
        return np.broadcast_to(node.value.reshape(-1), (channels,))
    if node.type.shape[-1] == node.type.size == channels:
        return np.asarray(node.value.reshape(-1))
    return None


def absorbs(node: Node, reader: Node, uses: Uses) -> bool:
    """Whether arithmetic of ``reader`` on the result can go into weights and bias; else it declined
    if the node is a contraction."""
    reason = obstacle(node, uses) if isinstance(node, Contraction) else None
    if reason:
        decline(reader, f"{node.name!r} {reason}")
    return reason == ""


def obstacle(node: Contraction, uses: Uses) -> str:
    """The reason why weights and bias cannot take arithmetic on the result; empty if they can."""
    if not uses.single(node):
        return "has other readers"
    if not is_float(node.x):
        return "sums integers"
    if not may_change(node.w) or not isinstance(node.b, Constant | None):
        return "has weights or a bias that are no constants"
    if isinstance(node, Conv) and node.residual is not None:
        return "adds a residual"
    return "" if node.is_bare else "has bounds or an activation already"


def bias_array(node: Contraction) -> Array:
    """The bias, zeros where there is none."""
    if isinstance(node.b, Constant):
        return node.b.value
    return np.zeros(node.w.type.shape[-1], np.float32)


def weight_array(node: Contraction) -> Array:
    assert isinstance(node.w, Constant)
    return node.w.value
