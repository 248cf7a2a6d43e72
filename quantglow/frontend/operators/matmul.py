"""Importers of Gemm and MatMul.  Products with a known 2-D right side become ``Gemm``."""

from __future__ import annotations

import math

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, coded_node, importer
from quantglow.frontend.nodes.values import Blocked, Coded
from quantglow.frontend.operators.weight_groups import grouped
from quantglow.graph.node import Node
from quantglow.ops.binary import Add, Mul
from quantglow.ops.convolution import Gemm, MatMul
from quantglow.ops.shape import Reshape, Transpose
from quantglow.ops.weight_groups import PackedWeights


@importer("Gemm")
def gemm(call: Call) -> Node:
    """``alpha * A' @ B' + beta * C``, A' and B' transposed on demand."""
    x = transposed(call, call.node(0), "transA", "a")
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    adds = call.has(2) and beta != 0
    has_row = adds and call.is_known(2) and is_row(call.array(2, "C"))
    packed = packed_of(call, alpha, call.integer("transB", 0))
    if packed is not None and (has_row or not adds):
        b = row(call, len(packed.codes), beta) if has_row else None
        return grouped(call, x, packed, b, call.result)
    if has_row and call.is_known(1):
        w = kn_weights(call, alpha)
        return Gemm(name=call.result, x=x, w=w, b=row(call, w.type.shape[1], beta))
    name = call.derived("product") if adds else call.result
    if call.is_known(1):
        product: Node = Gemm(name=name, x=x, w=kn_weights(call, alpha))
    else:
        y = transposed(call, call.node(1), "transB", "b")
        product = MatMul(name=name, x=scaled(call, x, alpha, "alpha"), y=y)
    if not adds:
        return product
    return Add(name=call.result, x=product, y=scaled(call, call.node(2), beta, "beta"))


def packed_of(call: Call, alpha: float, depth_axis: int) -> PackedWeights | None:
    """The second operand, times ``alpha``, if it has packed codes with K along this axis."""
    value = call.value(1)
    if not isinstance(value, Blocked) or value.depth_axis != depth_axis:
        return None
    return value.packed._replace(scales=value.packed.scales * np.float32(alpha))


def is_row(c: Array) -> bool:
    """Whether C is the same for every row of the result."""
    return c.size == 1 or c.shape[-1] == c.size


def row(call: Call, columns: int, beta: float) -> Node:
    """``beta * C`` as [N]."""

    def layout(c: Array) -> Array:
        return np.broadcast_to(c.reshape(-1), (columns,))

    if beta == 1:
        return call.weights(2, "row", layout)
    return call.constant("bias", layout(call.array(2, "C")) * np.float32(beta))


def kn_weights(call: Call, alpha: float) -> Node:
    """``alpha * B'`` as [K, N]."""
    flip = call.integer("transB", 0)

    def layout(b: Array) -> Array:
        return b.T if flip else b

    if alpha == 1:
        return call.weights(1, "kn", layout)
    value = call.value(1)
    if isinstance(value, Coded) and (times := value.laid_out(layout).times(alpha)) is not None:
        return coded_node(times, call.derived("kn"), call.scope)
    b = layout(call.array(1, "B"))
    return call.constant("kn", b * b.dtype.type(alpha))


def transposed(call: Call, x: Node, flag: str, tag: str) -> Node:
    return Transpose(name=call.derived(tag), x=x, perm=(1, 0)) if call.integer(flag, 0) else x


def scaled(call: Call, x: Node, factor: float, tag: str) -> Node:
    if factor == 1:
        return x
    return Mul(name=call.derived(tag), x=x, y=call.constant(f"{tag}-factor", np.array(factor)))


@importer("MatMul")
def matmul(call: Call) -> Node:
    """Operands of rank 1 count as a row (left) or a column (right) that the result drops."""
    left, right = call.shape(0), call.shape(1)
    if call.is_known(1) and len(right) <= 2:
        return product_with_weights(call)
    x, y = call.node(0), call.node(1)
    if len(left) > 1 and len(right) > 1:
        return MatMul(name=call.result, x=x, y=y)
    if len(left) == 1:
        x = Reshape(name=call.derived("row"), x=x, shape=(1, *left))
    if len(right) == 1:
        y = Reshape(name=call.derived("column"), x=y, shape=(*right, 1))
    made = MatMul(name=call.result, x=x, y=y)
    shape = list(made.type.shape)
    if len(left) == 1:
        del shape[-2]
    if len(right) == 1:
        del shape[-1]
    return Reshape(name=call.derived("shape"), x=made, shape=tuple(shape))


def product_with_weights(call: Call) -> Node:
    """x [..., K] as rows times [K, N]."""
    x, right = call.node(0), call.shape(1)
    *batch, k = x.type.shape
    if len(batch) != 1:
        x = Reshape(name=call.derived("rows"), x=x, shape=(math.prod(batch), k))
    made: Node
    if (packed := packed_of(call, 1.0, 0)) is not None:
        made = grouped(call, x, packed, None, call.result)
    else:
        w = call.weights(1, "kn", lambda y: y.reshape(y.shape[0], -1))
        made = Gemm(name=call.result, x=x, w=w)
    shape = (*batch, *right[1:])
    if shape == made.type.shape:
        return made
    return Reshape(name=call.derived("shape"), x=made, shape=shape)
