"""Importers of windowed and global pools, and of reductions."""

from __future__ import annotations

from quantglow.frontend.context import Call, importer
from quantglow.frontend.convolution import image_size
from quantglow.frontend.layout import channels_first, channels_last, from_nhwc, to_nhwc
from quantglow.frontend.windows import auto_padded, windows_of
from quantglow.graph.node import Node
from quantglow.ops.pooling import (
    AveragePool,
    MaxPool,
    ReduceMax,
    ReduceMean,
)


@importer("MaxPool")
def max_pool(call: Call) -> Node:
    x = to_nhwc(call)
    windows = windows_of(call, call.integers("kernel_shape", ()))
    made = MaxPool(
        name=call.result,
        x=x,
        kernel=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=auto_padded(call, windows, image_size(x)),
        ceil_mode=bool(call.integer("ceil_mode", 0)),
    )
    return from_nhwc(call, made)


@importer("AveragePool")
def average_pool(call: Call) -> Node:
    x = to_nhwc(call)
    windows = windows_of(call, call.integers("kernel_shape", ()))
    made = AveragePool(
        name=call.result,
        x=x,
        kernel=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=auto_padded(call, windows, image_size(x)),
        ceil_mode=bool(call.integer("ceil_mode", 0)),
        count_include_pad=bool(call.integer("count_include_pad", 0)),
    )
    return from_nhwc(call, made)


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Node:
    """The mean or maximum over every spatial axis."""
    x = channels_last(call, call.node(0), call.value_name(0))
    made = ReduceMean if call.proto.op_type == "GlobalAveragePool" else ReduceMax
    axes = tuple(range(1, x.type.rank - 1))
    return channels_first(call, made(name=call.result, x=x, axes=axes))
