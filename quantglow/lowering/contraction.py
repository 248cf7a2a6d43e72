"""Convolutions and products become ``Conv`` on explicitly padded tensors, or batched ``MatMul``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.errors import BackendError
from quantglow.graph.node import Constant, Node
from quantglow.lowering.rules import lowers, tag
from quantglow.ops import Conv, ConvTranspose, Elementwise, Expand, Gemm, MatMul, Pad, Reshape
from quantglow.ops.binary import Add
from quantglow.ops.expression import arg, call, clipped
from quantglow.symbolic.size import is_free
from quantglow.types import DType, ElementType


@lowers(Conv)
def lower_conv(node: Conv) -> Node | None:
    """Conv(x, pads) -> Conv(Pad(x)); b becomes zeros where it is absent"""
    require_constant(node, node.w)
    changes: dict[str, Any] = {}
    if any(node.pads):
        top, left, bottom, right = node.pads
        pad = Pad(
            name=tag(node, "pad"), x=node.x, before=(0, top, left, 0), after=(0, bottom, right, 0)
        )
        changes.update(x=pad, pads=(0, 0, 0, 0))
    if node.b is None:
        changes.update(b=zero_bias(node, node.type.shape[-1]))
    return replace(node, **changes) if changes else None


def zero_bias(node: Conv | ConvTranspose | Gemm, channels: int) -> Constant:
    """The bias of a contraction that has none."""
    numpy_type = np.float32 if node.w.type.dtype is DType.F32 else np.int32
    return Constant(name=tag(node, "bias"), value=np.zeros(channels, numpy_type))


def require_constant(node: Node, weights: Node) -> Constant:
    if isinstance(weights, Constant):
        return weights
    raise BackendError(
        f"{node.op} {node.name!r}: its weights {weights.name!r} are computed at run time; "
        "only constant weights can be compiled"
    )


@lowers(Gemm)
def lower_gemm(node: Gemm) -> Node:
    """x @ w + b -> Conv 1x1 on an image of one row; MatMul and Add where w is not constant"""
    if not isinstance(node.w, Constant):
        return _gemm_of_activations(node)
    (rows, k), columns = node.x.type.shape, node.type.shape[1]
    conv = Conv(
        name=tag(node, "conv"),
        x=Reshape(name=tag(node, "image"), x=node.x, shape=(1, 1, rows, k)),
        w=_reshaped_weights(node, node.w, (1, 1, k, columns)),
        b=node.b if node.b is not None else zero_bias(node, columns),
        activation=node.activation,
        low=node.low,
        high=node.high,
        out=node.out,
    )
    return Reshape(name=node.name, x=conv, shape=node.type.shape)


def _gemm_of_activations(node: Gemm) -> Node:
    if node.w.type.quant is not None:
        require_constant(node, node.w)
    product = MatMul(name=tag(node, "product"), x=node.x, y=node.w)
    b = node.b if node.b is not None else zero_bias(node, node.type.shape[1])
    if node.activation is None:
        return Add(name=node.name, x=product, y=b, low=node.low, high=node.high)
    value = node.activation.expression().substitute([call("add", arg(0), arg(1))])
    bounded = clipped(value, node.low, node.high).rounded()
    return Elementwise(
        name=node.name, args=(product, b), expression=bounded, out=ElementType(DType.F32)
    )


def _reshaped_weights(node: Node, w: Constant, shape: tuple[int, ...]) -> Constant:
    element = w.element
    if element is not None and element.quant is not None and element.quant.axis is not None:
        element = ElementType(element.dtype, replace(element.quant, axis=len(shape) - 1))
    return Constant(name=tag(node, "weights"), value=w.value.reshape(shape), element=element)


@lowers(MatMul)
def lower_matmul(node: MatMul) -> Node | None:
    """MatMul of any rank -> MatMul of [B, M, K] and [B, K, N]; a sum of nothing is zero"""
    depth = node.x.type.shape[-1]
    if not is_free(depth) and depth == 0:
        return _sum_of_nothing(node)
    if node.x.type.rank == node.y.type.rank == 3 and node.x.type.shape[0] == node.y.type.shape[0]:
        return None
    batch = node.type.shape[:-2]
    x = _batched(node, node.x, batch, "x")
    y = _batched(node, node.y, batch, "y")
    product = replace(node, name=tag(node, "batched"), x=x, y=y)
    return Reshape(name=node.name, x=product, shape=node.type.shape)


def _sum_of_nothing(node: MatMul) -> Node:
    """Zero in the integers of the result, everywhere."""
    numpy_type = node.x.type.dtype.numpy
    zero = node.reference(np.zeros((1, 0), numpy_type), np.zeros((0, 1), numpy_type))
    value = Constant(name=tag(node, "zero"), value=zero, element=node.type.element)
    return Expand(name=node.name, x=value, shape=node.type.shape)


def _batched(node: Node, operand: Node, batch: tuple[int, ...], role: str) -> Node:
    matrix = operand.type.shape[-2:]
    if operand.type.shape[:-2] != batch:
        operand = Expand(name=tag(node, f"{role}-expanded"), x=operand, shape=(*batch, *matrix))
        # A broadcast batch is copied once: kernels want one stride for the batch.
        operand = Elementwise(
            name=tag(node, f"{role}-copied"),
            args=(operand,),
            expression=arg(0),
            out=operand.type.element,
        )
    return Reshape(name=tag(node, role), x=operand, shape=(math.prod(batch), *matrix))
