"""A node of every operator that can be exported, on the operands of a kit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

from quantglow.importer.onnx import import_model
from quantglow.importer.onnx.nodes.context import IMPORTERS
from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.expression import arg, call, const
from quantglow.ir.types import DType, ElementType, f32
from tests.unit.export.onnx.export_kit import TO_NHWC, Kit


def conv(k: Kit) -> Node:
    channels, (kh, kw) = k.whole(1, 4), (k.whole(1, 3), k.whole(1, 3))
    c = k.x.type.shape[3]
    group = k.choice(1, c)
    out = k.choice(k.out, None)
    built = dict(
        x=k.x,
        w=k.weights(kh, kw, c // group, channels * group),
        b=k.bias(channels * group),
        group=group,
        strides=(k.whole(1, 2), k.whole(1, 2)),
        dilations=(1, k.whole(1, 2)),
        pads=(kh, k.whole(4, 5), k.whole(0, 1), 0),
        out=out,
        activation=k.activation(),
        **k.bounds(),
    )
    plain = ops.Conv(name=k.name(), **built)
    residual: Node = k.input(*plain.type.shape)
    if out is not None:
        residual = k.stored(residual)
    return ops.Conv(name=k.name(), residual=k.choice(None, residual), **built)


def conv_transpose(k: Kit) -> Node:
    channels, c = k.whole(1, 3), k.x.type.shape[3]
    group = k.choice(1, c)
    return ops.ConvTranspose(
        name=k.name(),
        x=k.x,
        w=k.weights(3, k.whole(1, 3), c // group, channels * group),
        b=k.bias(channels * group),
        group=group,
        strides=(2, k.whole(1, 2)),
        pads=(k.whole(0, 1), 0, k.whole(0, 1), 0),
        output_padding=(k.whole(0, 1), 0),
        activation=k.activation(),
        out=k.choice(k.out, None),
        **k.bounds(),
    )


def gemm(k: Kit) -> Node:
    x, channels = k.flat(), k.whole(1, 5)
    w, b = k.weights(x.type.shape[1], channels), k.bias(channels)
    fields = {"activation": k.activation(), "out": k.choice(k.out, None), **k.bounds()}
    return ops.Gemm(name=k.name(), x=x, w=w, b=b, **fields)


def mat_mul(k: Kit) -> Node:
    y = k.transposed(k.y, (0, 1, 3, 2))
    return ops.MatMul(name=k.name(), x=k.x, y=y, out=k.choice(k.out, None))


def binary(op: Any) -> Callable[[Kit], Node]:
    """The operator with a value in another layout, of other rank or broadcast, or with a
    Constant.
    """

    def make(k: Kit) -> Node:
        n, h, w, c = k.x.type.shape
        y = k.choice(
            lambda: k.y,
            lambda: k.stored(k.input(c)),
            lambda: k.stored(k.input(h, 1, c)),
            lambda: k.stored(k.transposed(k.input(n, c, 1, 1), TO_NHWC)),
            lambda: k.floats(w, 1),
            lambda: k.floats(),
        )()
        x, y = k.choice((k.x, y), (y, k.x))
        return op(name=k.name(), x=x, y=y, out=k.out, **k.bounds())

    return make


def division(k: Kit) -> Node:
    y = ops.Exp(name=k.name(), x=k.y)
    return ops.Div(name=k.name(), x=k.x, y=y, **k.bounds())


def power(k: Kit) -> Node:
    return ops.Pow(name=k.name(), x=ops.Exp(name=k.name(), x=k.x), y=k.floats(1))


def unary(op: Any, positive: bool = False, **attributes: Any) -> Callable[[Kit], Node]:
    def make(k: Kit) -> Node:
        x = ops.Exp(name=k.name(), x=k.x) if positive else k.x
        return op(name=k.name(), x=x, **attributes)

    return make


def where(k: Kit) -> Node:
    mask = k.choice(k.floats(*k.x.type.shape[2:]), k.floats(k.x.type.shape[3]), k.floats(1))
    negative = call("lt", arg(0), const(0))
    boolean = ElementType(DType.BOOL)
    condition = ops.Elementwise(name=k.name(), args=(mask,), expression=negative, out=boolean)
    x, y = k.choice((k.x, k.floats(1)), (k.floats(), k.x), (k.y, k.x))
    return ops.Where(name=k.name(), condition=condition, x=x, y=y)


def gather(k: Kit) -> Node:
    axis = k.whole(0, 3)
    indices = k.random.integers(-k.x.type.shape[axis], k.x.type.shape[axis], (k.whole(1, 3), 2))
    dtype = k.choice(np.int32, np.int64)
    chosen = Constant(name=k.name(), value=indices.astype(dtype))
    return ops.Gather(name=k.name(), x=k.x, indices=chosen, axis=axis)


def scatter(k: Kit) -> Node:
    rows = k.random.permutation(k.x.type.shape[0]).astype(k.choice(np.int32, np.int64))
    indices = Constant(name=k.name(), value=rows)
    reduction = k.choice("none", "max", "min", *(() if k.int8 else ("add", "mul")))
    return ops.Scatter(name=k.name(), x=k.y, indices=indices, updates=k.y, reduction=reduction)


def grouped_mat_mul(k: Kit) -> Node:
    x = k.input(k.whole(1, 5), k.whole(1, 70))
    return grouped(k, x, x.type.shape[1], k.choice(16, 32, 48), k.choice(4, 8))


def product_of_quantized_rows(k: Kit) -> Node:
    x = k.input(k.whole(1, 5), k.whole(1, 70))
    rows = ops.QuantizeRows(name=k.name(), x=x, group=32)
    return grouped(k, rows, x.type.shape[1], 32, 4)


def grouped(k: Kit, x: Node, depth: int, group: int, bits: int) -> Node:
    columns = k.whole(1, 9)
    shape = (columns, -(-depth // group))
    codes = k.random.integers(0, 256, (*shape, group * bits // 8)).astype(np.uint8)
    points = k.random.integers(0, 2**bits, shape).astype(np.uint8)
    return ops.GroupedMatMul(
        name=k.name(),
        x=x,
        w=Constant(name=k.name(), value=codes),
        scales=k.floats(*shape),
        zero_points=k.choice(None, Constant(name=k.name(), value=points)),
        b=k.choice(None, k.floats(columns)),
        bits=bits,
    )


def top_k(k: Kit) -> Node:
    length = k.x.type.shape[3]
    x = ops.Dequantize(name=k.name(), x=k.x) if k.int8 else k.x
    return ops.TopK(name=k.name(), x=x, k=k.whole(1, length), largest=k.choice(True, False))


def prelu(k: Kit) -> Node:
    slope = k.choice(k.floats(k.x.type.shape[3]), k.floats(1), k.floats(*k.x.type.shape[1:]))
    return ops.PRelu(name=k.name(), x=k.x, slope=slope, out=k.out)


def pool(op: Any, **extra: Any) -> Callable[[Kit], Node]:
    def make(k: Kit) -> Node:
        kernel = (k.whole(2, 3), k.whole(2, 3))
        return op(
            name=k.name(),
            x=k.x,
            kernel=kernel,
            strides=(k.whole(1, 2), k.whole(1, 2)),
            pads=(kernel[0] - 1, 1, kernel[0] - 1, 1),
            **{label: value(k) for label, value in extra.items()},
        )

    return make


def dilated_mean(k: Kit) -> Node:
    pads = (1, 1, 1, 1)
    return ops.AveragePool(
        name=k.name(), x=k.x, kernel=(2, 2), dilations=(2, 1), pads=pads, out=k.out
    )


def reduction(op: Any, rounds: bool = False) -> Callable[[Kit], Node]:
    def make(k: Kit) -> Node:
        axes = k.choice((1, 2), (1,), (3,), (0, 2), (1, 2, 3))
        more = {"out": k.out} if rounds else {}
        return op(name=k.name(), x=k.x, axes=axes, keepdims=k.choice(True, False), **more)

    return make


def batch_normalization(k: Kit) -> Node:
    c = k.x.type.shape[3]
    values = {p: k.floats(c) for p in ("gamma", "beta", "mean")}
    var = Constant(name=k.name(), value=np.abs(k.floats(c).value) + 1)
    return ops.BatchNormalization(name=k.name(), x=k.x, var=var, epsilon=1e-3, **values)


def lrn(k: Kit) -> Node:
    return ops.LRN(name=k.name(), x=k.x, size=k.choice(1, 3), alpha=0.3, beta=0.6, bias=1.5)


def layer_normalization(k: Kit) -> Node:
    c = k.x.type.shape[3]
    parameters = {p: k.choice(k.floats(c), None) for p in ("gamma", "beta")}
    return ops.LayerNormalization(name=k.name(), x=k.x, epsilon=0.1, out=k.out, **parameters)


def rows(k: Kit) -> Node:
    """x, less what is the same in all of a row, by the sum of its powers."""
    each = k.floats(*k.x.type.shape[:3], 1)
    powers = call("expneg", call("sub", arg(0), call("rowmax", arg(0))))
    # Squares: a sum that is 0 but for rounding would be no divisor.
    terms = call("add", powers, call("mul", arg(2), arg(2)))
    share = call("div", call("mul", powers, arg(1)), call("rowsum", terms))
    args = (k.x, each, k.floats(k.x.type.shape[3]))
    return ops.RowMap(name=k.name(), args=args, expression=share, out=ElementType(DType.F32))


def functions(k: Kit) -> Node:
    """Functions that ONNX composes of others."""
    logarithm, *gates = (call(f, call("abs", arg(0))) for f in ("log1p", "ndtr", "tanhgate"))
    value = (logarithm + gates[0] * gates[1]) * call("expm1", -call("abs", arg(0)))
    return ops.Elementwise(
        name=k.name(), args=(k.x,), expression=value.rounded(), out=ElementType(DType.F32)
    )


def softmax(k: Kit) -> Node:
    return ops.Softmax(name=k.name(), x=k.x, out=k.out)


def requantize(k: Kit) -> Node:
    real = ops.Dequantize(name=k.name(), x=k.x)
    return ops.Quantize(name=k.name(), x=real, out=k.element())


def concat(k: Kit) -> Node:
    y = k.y if k.x.type.element == k.y.type.element else k.x
    return ops.Concat(name=k.name(), parts=(k.x, y, k.x), axis=k.whole(0, 3))


def slice_(k: Kit) -> Node:
    starts, sizes, steps = [], [], []
    for d in k.x.type.shape:
        step = k.choice(1, 2, -1, -2)
        size = k.whole(1, -(-d // abs(step)))
        slack = d - 1 - (size - 1) * abs(step)
        first = k.whole(0, slack)
        starts.append(first if step > 0 else first + (size - 1) * -step)
        sizes.append(size)
        steps.append(step)
    return ops.Slice(
        name=k.name(), x=k.x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps)
    )


def pad(k: Kit) -> Node:
    before, after = (tuple(k.whole(0, 2) for _ in range(4)) for _ in range(2))
    return ops.Pad(name=k.name(), x=k.x, before=before, after=after, value=k.choice(0.0, 0.3))


def expand(k: Kit) -> Node:
    n, _, _, c = k.x.type.shape
    x = k.choice(k.x, ops.ReduceMax(name=k.name(), x=k.x, axes=(1, 2), keepdims=False))
    shape = (3, *k.x.type.shape) if x is k.x else (4, 2, n, c)
    return ops.Expand(name=k.name(), x=x, shape=shape)


def reshape(k: Kit) -> Node:
    n, h, w, c = k.x.type.shape
    return k.reshaped(
        k.x, *k.choice((n, h * w * c), (n, h * w, c), (n, 1, 1, h * w * c), (n * w, h, c, 1))
    )


def resize(k: Kit) -> Node:
    _, h, w, _ = k.x.type.shape
    sizes = (k.whole(1, 9), k.whole(1, 9))
    exact = (sizes[0] / h, sizes[1] / w)
    integral = k.choice(True, False)
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    return ops.Resize(
        name=k.name(),
        x=k.x,
        sizes=(2 * h, 3 * w) if integral else sizes,
        scales=(2.0, 3.0) if integral else exact,
        mode=k.choice("nearest", "linear"),
        coordinates=k.choice(*coordinates, "half_pixel_symmetric"),
    )


def antialiased_resize(k: Kit) -> Node:
    _, h, w, _ = k.x.type.shape
    sizes = (k.whole(1, 9), k.whole(1, 9))
    return ops.AntialiasedResize(
        name=k.name(),
        x=k.x,
        sizes=sizes,
        scales=(sizes[0] / h, sizes[1] / w),
        excludes_outside=k.choice(True, False),
    )


def rescale(k: Kit) -> Node:
    return ops.Rescale(name=k.name(), x=k.x, out=k.element())


def table(k: Kit) -> Node:
    out = k.element()
    entries = k.random.integers(-128, 128, 256).astype(np.int8)
    constant = Constant(name=k.name(), value=entries, element=out)
    return ops.Table(name=k.name(), x=k.x, table=constant, out=out)


def quantize(k: Kit) -> Node:
    return ops.Quantize(name=k.name(), x=k.x, out=k.element())


def external(kit: Kit) -> Node:
    """A node that the importer leaves to onnxruntime, of an older opset than the export's."""
    info = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, kit.y.type.shape)
    result = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, kit.y.type.shape)
    node = onnx.helper.make_node("Hardmax", ["a"], ["b"], axis=kit.whole(-1, 3))
    opsets = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [info], [result]), opset_imports=opsets, ir_version=8
    )
    with patch.dict(IMPORTERS):
        del IMPORTERS["Hardmax"]
        graph = import_model(model, fallback=True)
    first = next(n for n in graph.nodes if isinstance(n, ops.External))
    return replace(first, name=kit.name(), args=(kit.y,))


def loop(k: Kit) -> Node:
    """A recurrence over the rows of an image."""
    shape = k.x.type.shape[2:]
    state, element, scale = (Input(name=k.name(), tensor=f32(*s)) for s in (shape, shape, (1,)))
    scaled = ops.Mul(name=k.name(), x=state, y=scale)
    after = ops.Tanh(name=k.name(), x=ops.Add(name=k.name(), x=scaled, y=element))
    trips = k.x.type.shape[0] * k.x.type.shape[1]
    return ops.Loop(
        name=k.name(),
        carried=(k.floats(*shape),),
        sliced=(k.reshaped(k.y, trips, *shape),),
        captured=(k.floats(1),),
        body=Graph((state, element, scale), ((after.name, after), (after.name, after))),
        trips=trips,
        output=k.choice(0, 1),
    )
