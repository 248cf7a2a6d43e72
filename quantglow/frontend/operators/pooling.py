"""Importers of windowed and global pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.frontend.context import Call, importer
from quantglow.frontend.operators.convolution import image_size
from quantglow.frontend.operators.layout import channels_first, channels_last, from_nhwc, to_nhwc
from quantglow.frontend.operators.windows import Windows, auto_padded, windows_of
from quantglow.graph.node import Node
from quantglow.ops.binary import Mul, Pow
from quantglow.ops.pooling import (
    AveragePool,
    MaxPool,
    ReduceMax,
    ReduceMean,
)
from quantglow.ops.unary import Abs


def pool_options(call: Call, x: Node, windows: Windows) -> dict[str, Any]:
    """The attributes that all pools of an NHWC ``x`` have."""
    return {
        "kernel": windows.kernel,
        "strides": windows.strides,
        "dilations": windows.dilations,
        "pads": auto_padded(call, windows, image_size(x)),
        "ceil_mode": bool(call.integer("ceil_mode", 0)),
    }


@importer("MaxPool")
def max_pool(call: Call) -> Node:
    x = to_nhwc(call)
    options = pool_options(call, x, windows_of(call, call.integers("kernel_shape", ())))
    return from_nhwc(call, MaxPool(name=call.result, x=x, **options))


@importer("AveragePool")
def average_pool(call: Call) -> Node:
    x = to_nhwc(call)
    options = pool_options(call, x, windows_of(call, call.integers("kernel_shape", ())))
    options["count_include_pad"] = bool(call.integer("count_include_pad", 0))
    return from_nhwc(call, AveragePool(name=call.result, x=x, **options))


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Node:
    """The mean or maximum over every spatial axis."""
    x = channels_last(call, call.node(0), call.value_name(0))
    made = ReduceMean if call.proto.op_type == "GlobalAveragePool" else ReduceMax
    axes = tuple(range(1, x.type.rank - 1))
    return channels_first(call, made(name=call.result, x=x, axes=axes))


@importer("LpPool", "GlobalLpPool")
def lp_pool(call: Call) -> Node:
    """``sum(|x| ** p) ** (1 / p)`` of each window: the mean, padding included, times its size."""
    x, p = to_nhwc(call), call.integer("p", 2)
    everywhere = call.proto.op_type == "GlobalLpPool"
    shape = x.type.shape[1:3] if everywhere else call.integers("kernel_shape", ())
    windows = windows_of(call, shape)
    powers = Pow(
        name=call.derived("powers"),
        x=Abs(name=call.derived("abs"), x=x),
        y=call.constant("p", np.array(p)),
    )
    mean = AveragePool(
        name=call.derived("mean"),
        x=powers,
        **pool_options(call, x, windows),
        count_include_pad=True,
    )
    size = call.constant("size", np.array(math.prod(windows.kernel)))
    total = Mul(name=call.derived("sum"), x=mean, y=size)
    root = Pow(name=call.result, x=total, y=call.constant("root", np.array(1 / p)))
    return from_nhwc(call, root)
