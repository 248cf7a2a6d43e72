"""Importers of windowed and global pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, importer
from quantglow.importer.onnx.operators.nn.convolution import VOLUME_RANK as VOLUME
from quantglow.importer.onnx.operators.nn.convolution import (
    WindowGeometry,
    auto_padded,
    image_size,
    is_volume,
    parse_windows,
    pool_volume,
    volumes,
)
from quantglow.importer.onnx.operators.tensor.shape import (
    channels_first,
    channels_last,
    from_nhwc,
    to_nhwc,
)
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.binary import Mul, Pow
from quantglow.ir.ops.pooling import AveragePool, MaxPool, ReduceMax, ReduceMean
from quantglow.ir.ops.unary import Abs
from quantglow.ir.symbolic.size import Dim, Shape, decide_max


@importer("MaxPool")
def max_pool(call: Call) -> Node:
    return pool(call, lambda name, x, **options: MaxPool(name=name, x=x, **options))


@importer("AveragePool")
def average_pool(call: Call) -> Node:
    inside = bool(call.integer("count_include_pad", 0))

    def mean(name: str, x: Node, **options: Any) -> Node:
        return AveragePool(name=name, x=x, count_include_pad=inside, **options)

    return pool(call, mean)


def pool(call: Call, make: Callable[..., Node]) -> Node:
    """A pool that ``make`` makes, as the result."""
    kernel = call.integers("kernel_shape", ())
    if is_volume(call):
        x = channels_last(call, call.node(0), call.value_name(0))
        images = _over_windows(call, call.result, x, kernel, make)
        return volumes(call, images, images.type.shape[0] // x.type.shape[0])
    return from_nhwc(call, _over_windows(call, call.result, to_nhwc(call), kernel, make))


def _over_windows(call: Call, name: str, x: Node, kernel: Shape, make: Callable[..., Node]) -> Node:
    """A pool over images under a name; over volumes [N, D, H, W, C] as [N * OD, OH, OW, C]."""
    ceil_mode = bool(call.integer("ceil_mode", 0))

    def pool(name: str, x: Node, windows: WindowGeometry) -> Node:
        return make(
            name,
            x,
            kernel=windows.kernel,
            strides=windows.strides,
            dilations=windows.dilations,
            pads=windows.pads,
            ceil_mode=ceil_mode,
        )

    if x.type.rank == VOLUME:
        return pool_volume(call, name, x, kernel, pool)
    windows = parse_windows(call, kernel)
    return pool(name, x, replace(windows, pads=auto_padded(call, windows, image_size(x))))


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Node:
    """The mean or maximum over every spatial axis."""
    x = channels_last(call, call.node(0), call.value_name(0))
    operator = ReduceMean if call.proto.op_type == "GlobalAveragePool" else ReduceMax
    axes = tuple(range(1, x.type.rank - 1))
    return channels_first(call, operator(name=call.result, x=x, axes=axes))


@importer("LpPool", "GlobalLpPool")
def lp_pool(call: Call) -> Node:
    """``sum(|x| ** p) ** (1 / p)`` of each window: the mean, padding included, times its size."""
    p, everywhere = call.integer("p", 2), call.proto.op_type == "GlobalLpPool"
    in_depth = is_volume(call)
    x = channels_last(call, call.node(0), call.value_name(0)) if in_depth else to_nhwc(call)
    kernel = x.type.shape[1:-1] if everywhere else call.integers("kernel_shape", ())
    powers = Pow(
        name=call.derive("powers"),
        x=Abs(name=call.derive("abs"), x=x),
        y=call.constant("p", np.array(p)),
    )

    def pool_mean(name: str, x: Node, **options: Any) -> Node:
        return _whole(AveragePool(name=name, x=x, count_include_pad=True, **options))

    mean = _over_windows(call, call.derive("mean"), powers, kernel, pool_mean)
    size = call.constant("size", np.array(math.prod(kernel)))
    total = Mul(name=call.derive("sum"), x=mean, y=size)
    root = Pow(name=call.result, x=total, y=call.constant("root", np.array(1 / p)))
    if in_depth:
        return volumes(call, root, root.type.shape[0] // x.type.shape[0])
    return from_nhwc(call, root)


def _whole(pool: AveragePool) -> AveragePool:
    """The same windows, with padding up to the end of the last one."""
    if not pool.ceil_mode:
        return pool
    after: list[Dim] = []
    for axis in (0, 1):
        reach = pool.dilations[axis] * (pool.kernel[axis] - 1) + 1
        last = (pool.type.shape[axis + 1] - 1) * pool.strides[axis]
        missing = last + reach - pool.x.type.shape[axis + 1] - pool.pads[axis]
        after.append(decide_max(missing, 0))
    return replace(pool, pads=(*pool.pads[:2], after[0], after[1]), ceil_mode=False)
