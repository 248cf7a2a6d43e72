"""Every operator that can be exported, float and int8, on drawn operands; and onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime

import quantglow.runtime.delegation  # noqa: F401 - gives External nodes their meaning
from quantglow import ops
from quantglow.frontend import import_model
from quantglow.frontend.context import IMPORTERS
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.ops.activation import Activation
from quantglow.ops.expression import arg, call, const
from quantglow.types import DType, ElementType, QuantParams, f32

BOUNDS = ((-math.inf, math.inf), (0.0, math.inf), (0.0, 1.5), (-0.4, 0.7), (-math.inf, 1.0))
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class Kit:
    """Operands: ``x`` comes from an image [N, C, H, W], ``y`` of its shape [N, H, W, C] does not.

    Scales are drawn from a continuum, so that ties are as good as impossible.
    """

    def __init__(self, seed: int, int8: bool) -> None:
        self.random = np.random.default_rng(seed)
        self.int8 = int8
        self.inputs: list[Input] = []
        self.count = 0
        n, h, w, c = (self.whole(1, 2), self.whole(1, 5), self.whole(1, 5), self.whole(1, 6))
        image = self.transposed(self.input(n, c, h, w), TO_NHWC)
        self.x = self.stored(image)
        self.y = self.stored(self.input(n, h, w, c))

    def whole(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def choice(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def input(self, *shape: int) -> Input:
        made = Input(name=self.name(), tensor=f32(*shape))
        self.inputs.append(made)
        return made

    def stored(self, x: Node, element: ElementType | None = None) -> Node:
        """x in int8 if this kit is about int8."""
        if not self.int8:
            return x
        return ops.Quantize(name=self.name(), x=x, out=element or self.element())

    def element(self) -> ElementType:
        scale, zero_point = self.random.uniform(0.01, 0.05), self.choice(-128, -128, -7, 0, 127)
        return ElementType(DType.I8, QuantParams.per_tensor(scale, zero_point))

    @property
    def out(self) -> ElementType | None:
        return self.element() if self.int8 else None

    def bounds(self) -> dict[str, float]:
        low, high = self.choice(*BOUNDS)
        return {"low": low, "high": high}

    def activation(self) -> Activation | None:
        hard = Activation("HardSigmoid", (0.2, 0.5))
        moved = Activation("HardSwish", (), 1.3, -0.2)
        return self.choice(None, None, hard, Activation("LeakyRelu", (0.1,)), moved)

    def transposed(self, x: Node, perm: tuple[int, ...]) -> Node:
        return ops.Transpose(name=self.name(), x=x, perm=perm)

    def reshaped(self, x: Node, *shape: int) -> Node:
        return ops.Reshape(name=self.name(), x=x, shape=shape)

    def floats(self, *shape: int) -> Constant:
        value = self.random.normal(size=shape).astype(np.float32)
        return Constant(name=self.name(), value=value)

    def weights(self, *shape: int) -> Constant:
        """By channel or with one scale."""
        if not self.int8:
            return self.floats(*shape)
        params = QuantParams.symmetric(self.random.uniform(0.001, 0.02, shape[-1]), len(shape) - 1)
        if self.choice(True, False):
            params = QuantParams.per_tensor(self.random.uniform(0.001, 0.02), 0)
        value = self.random.integers(-127, 128, shape).astype(np.int8)
        return Constant(name=self.name(), value=value, element=ElementType(DType.I8, params))

    def bias(self, channels: int) -> Constant | None:
        if self.choice(True, False):
            return None
        if not self.int8:
            return self.floats(channels)
        value = self.random.integers(-3000, 3000, channels).astype(np.int32)
        return Constant(name=self.name(), value=value)

    def flat(self) -> Node:
        """x as a matrix [N, H*W*C]."""
        return self.reshaped(
            self.x, self.x.type.shape[0], -(-self.x.type.size // self.x.type.shape[0])
        )

    def graph(self, result: Node) -> Graph:
        """The result in both layouts, in floats."""
        real = ops.Dequantize(name="real", x=result) if result.type.quant else result
        outputs = [("result", real)]
        if real.type.rank == 4:
            outputs.append(("channels_first", self.transposed(real, TO_NCHW)))
        return Graph(inputs=tuple(self.inputs), outputs=tuple(outputs), source_hash="test")

    def feeds(self, graph: Graph) -> dict[str, np.ndarray]:
        draw = self.random.normal
        return {i.name: draw(size=i.type.shape).astype(np.float32) for i in graph.inputs}


def conv(k: Kit) -> Node:
    channels, (kh, kw) = k.whole(1, 4), (k.whole(1, 3), k.whole(1, 3))
    c = k.x.type.shape[3]
    group = k.choice(1, c)
    out = k.choice(k.out, None)
    made = dict(
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
    plain = ops.Conv(name=k.name(), **made)
    residual: Node = k.input(*plain.type.shape)
    if out is not None and k.choice(True, False):
        residual = k.stored(residual)
    return ops.Conv(name=k.name(), residual=k.choice(None, residual), **made)


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
    """With a value in another layout, of other rank or broadcast, or with a Constant."""

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
    condition = ops.Map(name=k.name(), args=(mask,), expression=negative, out=boolean)
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
    share = call("div", call("mul", powers, arg(1)), call("rowsum", call("add", powers, arg(2))))
    args = (k.x, each, k.floats(k.x.type.shape[3]))
    return ops.Rows(name=k.name(), args=args, expression=share, out=ElementType(DType.F32))


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


def rescale(k: Kit) -> Node:
    return ops.Rescale(name=k.name(), x=k.x, out=k.element())


def table(k: Kit) -> Node:
    out = k.element()
    entries = k.random.integers(-128, 128, 256).astype(np.int8)
    constant = Constant(name=k.name(), value=entries, element=out)
    return ops.Table(name=k.name(), x=k.x, table=constant, out=out)


def quantize(k: Kit) -> Node:
    return ops.Quantize(name=k.name(), x=k.x, out=k.element())


BOTH: dict[str, Callable[[Kit], Node]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": mat_mul,
    "Add": binary(ops.Add),
    "Sub": binary(ops.Sub),
    "Mul": binary(ops.Mul),
    "Max": binary(ops.Max),
    "Min": binary(ops.Min),
    "PRelu": prelu,
    "MaxPool": pool(ops.MaxPool, ceil_mode=lambda k: k.choice(True, False)),
    "AveragePool": pool(
        ops.AveragePool,
        out=lambda k: k.out,
        ceil_mode=lambda k: k.choice(True, False),
        count_include_pad=lambda k: k.choice(True, False),
    ),
    "AveragePool-dilated": dilated_mean,
    "ReduceMean": reduction(ops.ReduceMean, rounds=True),
    "ReduceMax": reduction(ops.ReduceMax),
    "ReduceMin": reduction(ops.ReduceMin),
    "Softmax": softmax,
    "LayerNormalization": layer_normalization,
    "Concat": concat,
    "Slice": slice_,
    "Pad": pad,
    "Expand": expand,
    "Reshape": reshape,
    "Resize": resize,
    "Gather": gather,
}
"""Operators with a float and an int8 form."""


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
        graph = import_model(model, delegate=True)
    found = next(n for n in graph.nodes if isinstance(n, ops.External))
    return replace(found, name=kit.name(), args=(kit.y,))


FLOAT: dict[str, Callable[[Kit], Node]] = {
    **BOTH,
    "Div": division,
    "External": external,
    "Pow": power,
    "Where": where,
    "Scatter": scatter,
    "TopK": top_k,
    "Log": unary(ops.Log, positive=True),
    "Sqrt": unary(ops.Sqrt, positive=True),
    "Reciprocal": unary(ops.Reciprocal, positive=True),
    "LeakyRelu": unary(ops.LeakyRelu, alpha=0.2),
    "Clip": unary(ops.Clip, low=-0.5, high=0.5),
    "Clip-nothing": unary(ops.Clip),
    "HardSigmoid": unary(ops.HardSigmoid, alpha=0.3, beta=0.4),
    "Swish": unary(ops.Swish),
    "Swish-scaled": unary(ops.Swish, alpha=1.7),
    "Gelu": unary(ops.Gelu),
    "Gelu-tanh": unary(ops.Gelu, approximate=True),
    "Elu": unary(ops.Elu, alpha=0.7),
    **{
        op.__name__: unary(op)
        for op in (
            ops.Abs,
            ops.Ceil,
            ops.Erf,
            ops.Exp,
            ops.Floor,
            ops.HardSwish,
            ops.Neg,
            ops.Relu,
            ops.Sigmoid,
            ops.Softplus,
            ops.Tanh,
        )
    },
    "ReduceSum": reduction(ops.ReduceSum),
    "BatchNormalization": batch_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": unary(ops.LogSoftmax),
    "Rows": rows,
    "Quantize": quantize,
}

INT8: dict[str, Callable[[Kit], Node]] = {
    **BOTH,
    "Rescale": rescale,
    "Table": table,
    "Quantize": requantize,
}


def by_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], optimized: bool = True
) -> list[np.ndarray]:
    """Outputs of onnxruntime, without the instructions that overflow in 16 bits."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, dict(feeds))
