"""Importers of integer products whose parameters are computed at run time.

MatMulInteger and ConvInteger give the exact int32 sum of ``(x - x_zero_point) * (w -
w_zero_point)``; ``integer_sums.py`` says how.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.convolution import image_kernel, image_size
from quantglow.frontend.operators.integer_sums import (
    Terms,
    ZeroPoint,
    centred_weights,
    known_weights,
    lowered,
    products,
    rows_times_weights,
    whole,
)
from quantglow.frontend.operators.layout import from_nhwc, to_nhwc
from quantglow.frontend.operators.windows import auto_padded, windows_of
from quantglow.graph.node import Node
from quantglow.ops import Conv, Elementwise, ReduceMax, ReduceMin
from quantglow.ops.expression import Expr, arg, const
from quantglow.ops.expression import call as fn
from quantglow.ops.images import Images
from quantglow.ops.window_products import conv2d
from quantglow.types import DType, ElementType

FLOAT, CODES = ElementType(DType.F32), ElementType(DType.U8)


@importer("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> Sequence[Node]:
    return dynamically_quantized(call, call.node(0), [call.result_name(i) for i in range(3)])


def dynamically_quantized(call: Call, x: Node, names: Sequence[str]) -> tuple[Node, Node, Node]:
    """uint8 codes of a range found at run time that includes 0, its scale and its zero point."""
    axes = tuple(range(x.type.rank))
    lowest = ReduceMin(name=call.derived("lowest"), x=x, axes=axes, keepdims=False)
    highest = ReduceMax(name=call.derived("highest"), x=x, axes=axes, keepdims=False)
    low, high = fn("min", arg(0), const(0)), fn("max", arg(1), const(0))
    width = fn("div", fn("sub", high, low), const(255))
    scale = Elementwise(
        name=names[1],
        args=(lowest, highest),
        expression=fn("select", fn("eq", high, low), const(1), width),
        out=FLOAT,
    )
    shift = fn("sub", const(0), fn("div", low, arg(1)))
    zero_point = Elementwise(
        name=names[2],
        args=(lowest, scale),
        expression=fn("int", rounded_within(shift, const(0), const(255))),
        out=CODES,
    )
    point = fn("float", arg(2))
    steps = rounded_within(
        fn("div", arg(0), arg(1)), fn("sub", const(0), point), fn("sub", const(255), point)
    )
    codes = Elementwise(
        name=names[0],
        args=(x, scale, zero_point),
        expression=fn("iadd", fn("int", steps), arg(2)),
        out=CODES,
    )
    return codes, scale, zero_point


def rounded_within(value: Expr, low: Expr, high: Expr) -> Expr:
    return fn("rint", fn("fmin", fn("fmax", value, low), high))


@importer("MatMulInteger")
def mat_mul_integer(call: Call) -> Node:
    """x [..., K] times known weights [K, N]."""
    weights = centred_weights(call, 1, 3)
    if weights.ndim != 2:
        raise Unsupported("its second operand is no matrix")
    x, point = whole(call, 0), ZeroPoint.of(call, 2)
    return rows_times_weights(call, call.result, x, point, weights)


@importer("ConvInteger")
def conv_integer(call: Call) -> Node:
    """Padding counts as the zero point: the sum of weights is that of the taps inside."""
    weights = image_kernel(centred_weights(call, 1, 3)).transpose(2, 3, 1, 0)
    point = ZeroPoint.of(call, 2)
    x = to_nhwc(call, x=whole(call, 0))
    windows = windows_of(call, call.shape(1)[2:])
    top, left, bottom, right = pads = auto_padded(call, windows, image_size(x))
    group = call.integer("group", 1)
    strides, dilations = windows.strides, windows.dilations

    def product(name: str, part: slice, w: Array) -> Node:
        if w.shape[2] < weights.shape[2]:
            raise Unsupported("its sums do not fit float32")
        return Conv(
            name=name,
            x=x,
            w=known_weights(call, w),
            strides=strides,
            pads=pads,
            dilations=dilations,
            group=group,
        )

    codes, less = lowered(weights) if group == 1 else (weights, np.zeros(1, np.int32))
    height, width = image_size(x)
    call.reserve((height + top + bottom, width + left + right, x.type.shape[-1]), 8)
    inside = np.pad(np.ones((1, *x.type.shape[1:])), ((0, 0), (top, bottom), (left, right), (0, 0)))
    totals = conv2d(Images.of(inside), weights.astype(np.float64), strides, dilations, group)
    totals = totals if any(pads) else totals[:, :1, :1]
    terms = Terms(totals, less, products(call, codes, product))
    if less.any():
        terms.inputs += products(call, np.ones_like(codes[..., :1]), product)
    return from_nhwc(call, terms.summed(call.result, call, point))
