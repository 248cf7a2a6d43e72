"""Hypothesis: the steps that extend ``mixed_graphs``, an operator each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from quantglow.ir.graph.node import Node
from quantglow.ir.ops import (
    LRN,
    Abs,
    Add,
    AveragePool,
    BatchNormalization,
    Concat,
    Conv,
    ConvTranspose,
    Dequantize,
    Expand,
    Gelu,
    Gemm,
    HardSwish,
    LayerNormalization,
    LogSoftmax,
    MatMul,
    Max,
    MaxPool,
    Min,
    Mul,
    Neg,
    Pad,
    PRelu,
    Quantize,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Relu,
    Rescale,
    Reshape,
    Resize,
    Sigmoid,
    Slice,
    Softmax,
    Sub,
    Table,
    Transpose,
)
from quantglow.ir.types import DType, ElementType, QuantParams
from tests.generators.quantized_graphs.drawing import Drawing
from tests.generators.values import activations

Step = Callable[[Drawing, Node], Node | None]
"""A new node on the value x, or None if the operator does not fit."""


def integer(x: Node) -> bool:
    return x.type.quant is not None


def image(x: Node) -> bool:
    return x.type.rank == 4 and min(x.type.shape[1:]) > 0


def may_be_infinite(x: Node) -> bool:
    """Whether a Pad with infinities is among the values that x is computed from."""
    is_infinite = isinstance(x, Pad) and np.isinf(x.value)
    return is_infinite or any(may_be_infinite(operand) for operand in x.operands)


def conv(g: Drawing, x: Node) -> Node | None:
    if not image(x):
        return None
    c = x.type.shape[3]
    group = g.pick(1, c)
    o = group * g.pick(1, 2) if group > 1 else g.pick(1, 3)
    kernel = (g.pick(1, 2), g.pick(1, 3))
    pads = (*(g.number(0, 2) for _ in range(2)), 2, g.pick(0, 2))
    fields: dict[str, Any] = {"strides": (g.pick(1, 2), 1), "pads": pads, "group": group}
    fields |= {"activation": g.draw(st.one_of(st.none(), activations()))}
    fields |= {"dilations": (1, g.pick(1, 2)), "low": g.pick(-np.inf, 0.0), "high": g.pick(1, 6.0)}
    shape = (*kernel, c // group, o)
    if not integer(x):
        return g.make(Conv, x=x, w=g.floats(*shape), b=g.pick(None, g.floats(o)), **fields)
    bias = g.constant(g.random.integers(-500, 500, o).astype(np.int32))
    fields |= {"w": g.weights(*shape), "b": g.pick(None, bias), "out": g.pick(None, *g.either())}
    built = g.make(Conv, x=x, **fields)
    fit = [v for v in g.values if v.type.shape == built.type.shape and integer(v)]
    if fit and fields["out"] and g.pick(True, False):
        return g.make(Conv, x=x, residual=g.pick(*fit), **fields)
    return built


def pointwise_residual(g: Drawing, x: Node) -> Node | None:
    """A convolution whose residual is its own operand."""
    if not image(x) or not integer(x):
        return None
    c = x.type.shape[3]
    return g.make(Conv, x=x, w=g.weights(1, 1, c, c), residual=x, out=g.pick(*g.either()))


def conv_transpose(g: Drawing, x: Node) -> Node | None:
    """A ConvTranspose of finite values: where a stride does not divide the kernel, lowering adds
    taps of 0, and 0 times infinity is NaN.
    """
    if not image(x) or may_be_infinite(x):
        return None
    c, stride = x.type.shape[3], g.pick(1, 2)
    fields: dict[str, Any] = {"strides": (stride, 2), "pads": (g.pick(0, 1), 0, 0, g.pick(0, 1))}
    fields |= {"output_padding": (0, g.pick(0, 1))}
    fields |= {"activation": g.draw(st.one_of(st.none(), activations()))}
    if integer(x):
        return g.make(
            ConvTranspose, x=x, w=g.weights(2, 3, c, 2), out=g.pick(*g.either()), **fields
        )
    return g.make(ConvTranspose, x=x, w=g.floats(2, 3, c, 2), **fields)


def gemm(g: Drawing, x: Node) -> Node | None:
    if not x.type.rank or not x.type.shape[0]:
        return None
    k = x.type.size // x.type.shape[0]
    flat = g.make(Reshape, x=x, shape=(x.type.shape[0], k))
    f = g.draw(st.one_of(st.none(), activations()))
    if integer(x):
        out = g.pick(None, *g.either())
        return g.make(Gemm, x=flat, w=g.weights(k, 3), activation=f, out=out)
    return g.make(Gemm, x=flat, w=g.floats(k, 3), b=g.floats(3), activation=f, low=0.0)


def matmul(g: Drawing, x: Node) -> Node | None:
    """The product of x and its transpose, batch axes broadcast or not."""
    rank = x.type.rank
    if rank < 2:
        return None
    swapped = g.make(Transpose, x=x, perm=(*range(rank - 2), rank - 1, rank - 2))
    y: Node = swapped
    if rank > 2 and x.type.shape[0] > 0 and g.pick(True, False):
        sizes = (1, *swapped.type.shape[1:])
        y = g.make(Slice, x=swapped, starts=(0,) * rank, sizes=sizes, steps=(1,) * rank)
    return g.make(MatMul, x=x, y=y, out=g.pick(None, *g.either()) if integer(x) else None)


def binary(g: Drawing, x: Node) -> Node | None:
    fit = [v for v in g.values if v.type.shape == x.type.shape and integer(v) == integer(x)]
    op, bounds = g.pick_evenly(Add, Sub, Mul, Max, Min), {"low": g.pick(-np.inf, -0.5)}
    y = g.pick(*fit)
    if g.pick(True, False) and x.type.rank:
        y = g.floats(x.type.shape[-1])
    if not integer(x):
        return g.make(op, x=x, y=y, **bounds)
    x, y = (y, x) if g.pick(True, False) else (x, y)
    return g.make(op, x=x, y=y, out=g.pick(*g.either()), **bounds)


def unary(g: Drawing, x: Node) -> Node | None:
    if integer(x):
        return None
    return g.make(g.pick_evenly(Relu, Abs, Neg, Sigmoid, HardSwish, Gelu), x=x)


def table(g: Drawing, x: Node) -> Node | None:
    if not integer(x):
        return None
    out = g.pick(*g.either())
    count = 2 ** (8 * x.type.dtype.nbytes)
    codes = g.random.integers(*out.dtype.limits, count, endpoint=True).astype(out.dtype.numpy)
    return g.make(Table, x=x, table=g.constant(codes, g.pick(out, None)), out=out, function="drawn")


def prelu(g: Drawing, x: Node) -> Node | None:
    if not x.type.rank:
        return None
    slope = g.floats(x.type.shape[-1])
    return g.make(PRelu, x=x, slope=slope, out=g.pick(*g.either()) if integer(x) else None)


def retyped(g: Drawing, x: Node) -> Node | None:
    if not integer(x):
        return g.make(Quantize, x=x, out=g.pick(*g.either())) if x in g.exact else None
    return g.pick(g.make(Dequantize, x=x), g.make(Rescale, x=x, out=g.pick(*g.either())))


def per_axis(g: Drawing, x: Node) -> Node | None:
    """A Quantize along the last axis, and its Dequantize."""
    if integer(x) or x not in g.exact or not x.type.rank or not x.type.shape[-1]:
        return None
    channels = x.type.shape[-1]
    scales = tuple(g.random.uniform(0.01, 0.1, channels))
    zero_points = tuple(int(z) for z in g.random.integers(-128, 128, channels))
    out = ElementType(DType.I8, QuantParams(scales, zero_points, x.type.rank - 1))
    return g.make(Dequantize, x=g.make(Quantize, x=x, out=out))


def pool(g: Drawing, x: Node) -> Node | None:
    if not image(x):
        return None
    fields: dict[str, Any] = {"kernel": (g.pick(1, 2), 2), "strides": (1, g.pick(1, 2))}
    fields |= {"pads": (0, 1, g.pick(0, 1), g.pick(0, 1)), "ceil_mode": g.pick(True, False)}
    if fields["kernel"][0] == 1:
        fields["pads"] = (0, 1, 0, 1)
    if x.type.shape[1] < fields["kernel"][0]:
        return None
    if g.pick_evenly(True, False):
        return g.make(MaxPool, x=x, **fields)
    out = g.pick(*g.either()) if integer(x) else None
    return g.make(AveragePool, x=x, out=out, count_include_pad=g.pick(True, False), **fields)


def reduced(g: Drawing, x: Node) -> Node | None:
    if not x.type.size or not x.type.rank:
        return None
    axes = tuple(i for i in range(x.type.rank) if g.pick(True, False))
    op = g.pick_evenly(ReduceMean, ReduceMax, ReduceMin, *([] if integer(x) else [ReduceSum]))
    out = {"out": g.pick(*g.either())} if op is ReduceMean and integer(x) else {}
    return g.make(op, x=x, axes=axes, keepdims=g.pick(True, False), **out)


def normalized(g: Drawing, x: Node) -> Node | None:
    if not x.type.rank or not x.type.shape[-1]:
        return None
    if x.type.dtype is DType.I16:
        return None
    if integer(x):
        return g.make(Softmax, x=x, out=g.element())
    c = x.type.shape[-1]
    parameters = {k: g.floats(c) for k in ("gamma", "beta", "mean")}
    variance = g.constant(g.random.uniform(0.5, 2, c).astype(np.float32))
    return g.pick_evenly(
        g.make(Softmax, x=x),
        g.make(LogSoftmax, x=x),
        g.make(LayerNormalization, x=x, gamma=variance, epsilon=0.1),
        g.make(LRN, x=x, size=g.pick(1, 2, 3)),
        g.make(BatchNormalization, x=x, var=variance, **parameters),
    )


def resized(g: Drawing, x: Node) -> Node | None:
    if not image(x):
        return None
    sizes = (g.pick(1, 3), g.pick(2, 5))
    scales = (sizes[0] / x.type.shape[1], sizes[1] / x.type.shape[2])
    return g.make(Resize, x=x, sizes=sizes, scales=scales, mode=g.pick("nearest", "linear"))


def moved(g: Drawing, x: Node) -> Node | None:
    """Transpose, Slice, Expand, Reshape."""
    rank, shape = x.type.rank, x.type.shape
    kind = g.pick_evenly("transpose", "slice", "expand", "reshape")
    if kind == "transpose":
        return g.make(Transpose, x=x, perm=tuple(g.draw(st.permutations(range(rank)))))
    if kind == "expand":
        return g.make(Expand, x=x, shape=(2, *(3 if d == 1 else d for d in shape)))
    if kind == "reshape":
        whole = (x.type.size,)
        return g.make(Reshape, x=x, shape=g.pick(whole, (1, *whole), (*shape, 1), (1, 1, *shape)))
    starts, sizes, steps = [], [], []
    for d in shape:
        step, start = g.pick(1, 1, -1, 2, -2), g.number(0, min(max(d - 1, 0), 9))
        room = 0 if not d else (d - 1 - start if step > 0 else start) // abs(step) + 1
        starts.append(start)
        steps.append(step)
        sizes.append(g.pick(room, room, room, room // 2))
    return g.make(Slice, x=x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def padded(g: Drawing, x: Node) -> Node | None:
    before = tuple(g.pick(0, 1, 2) for _ in x.type.shape)
    after = tuple(g.pick(0, 1) for _ in x.type.shape)
    fill = g.pick(0.0, -0.0, 0.0, 1.5, *([] if integer(x) else [-np.inf, np.inf]))
    return g.make(Pad, x=x, before=before, after=after, value=fill)


def concat(g: Drawing, x: Node) -> Node | None:
    if not x.type.rank:
        return None
    axis = g.number(0, x.type.rank - 1)

    def fits(v: Node) -> bool:
        remaining = (v.type.shape[:axis], v.type.shape[axis + 1 :])
        ours = (x.type.shape[:axis], x.type.shape[axis + 1 :])
        return v.type.rank == x.type.rank and remaining == ours and integer(v) == integer(x)

    fit = [v for v in g.values if fits(v)]
    parts = [x, *g.draw(st.lists(st.sampled_from(fit), min_size=1, max_size=2))]
    if integer(x):
        parts = [
            p if p.type.element == x.type.element else g.make(Rescale, x=p, out=x.type.element)
            for p in parts
        ]
    return g.make(Concat, parts=tuple(g.draw(st.permutations(parts))), axis=axis)


EXACT: tuple[Step, ...] = (
    conv,
    pointwise_residual,
    conv_transpose,
    gemm,
    matmul,
    binary,
    binary,
    binary,
    table,
    prelu,
    retyped,
    per_axis,
    pool,
    reduced,
    moved,
    moved,
    padded,
    padded,
    concat,
    concat,
)
"""Steps that keep integers exact, and floats if no float sum is reordered."""

INEXACT: tuple[Step, ...] = (unary, unary, unary, normalized, normalized, resized)

KEEPS_FLOATS_EXACT = {binary, retyped, per_axis, moved, padded, concat, prelu}
