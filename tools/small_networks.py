"""Small ONNX networks of many kinds, built here: random weights, a few thousand each.

Equal names give equal models.  Inputs are called ``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


@dataclass
class Builder:
    """Nodes and weights of a model with one input."""

    shape: Sequence[int]
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def op(self, kind: str, *operands: str, **attributes: Any) -> str:
        """Append a node; the name of its output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def normal(self, *shape: int, deviation: float = 1.0) -> str:
        return self.constant(self.rng.standard_normal(shape) * deviation)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, **attributes: Any) -> str:
        """A convolution with bias that keeps the size, but for strides."""
        dilation = attributes.get("dilations", [1])[0]
        fan_in = inputs // attributes.get("group", 1) * kernel**2
        shape = (outputs, inputs // attributes.get("group", 1), kernel, kernel)
        weights = self.normal(*shape, deviation=(2 / fan_in) ** 0.5)
        bias = self.normal(outputs, deviation=0.2)
        attributes.setdefault("pads", [kernel // 2 * dilation] * 4)
        return self.op("Conv", x, weights, bias, **attributes)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.op("MatMul", x, self.normal(inputs, outputs, deviation=inputs**-0.5))
        return self.op("Add", product, self.normal(outputs, deviation=0.2))

    def pooled(self, x: str) -> str:
        """The mean of each channel, [N, C]."""
        return self.op("Flatten", self.op("GlobalAveragePool", x))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The model, with the shapes of its outputs."""
        make = helper.make_tensor_value_info
        inputs = [make("x", TensorProto.FLOAT, self.shape)]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "small", inputs, results, self.weights)
        opsets = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def residual() -> onnx.ModelProto:
    """Convolutions of kernel 1, 3, 5 and 7, batch normalization, residual additions, a Gemm."""
    net = Builder((1, 3, 48, 44), 1)
    x = net.op("Relu", net.conv("x", 3, 24, 7, strides=[2, 2]))
    for kernel in (3, 5):
        y = net.conv(x, 24, 24, kernel)
        scale, shift, mean = (net.normal(24, deviation=0.3) for _ in range(3))
        variance = net.constant(net.rng.uniform(0.5, 2, 24))
        y = net.op("Relu", net.op("BatchNormalization", y, scale, shift, mean, variance))
        x = net.op("Relu", net.op("Add", net.conv(y, 24, 24, 1), x))
    y = net.conv(x, 24, 40, 1, strides=[2, 2])
    x = net.op("Add", net.conv(net.op("Relu", net.conv(x, 24, 40, strides=[2, 2])), 40, 40), y)
    weights, bias = net.normal(10, 40, deviation=0.3), net.normal(10)
    return net.model(net.op("Gemm", net.pooled(x), weights, bias, transB=1), x)


def depthwise() -> onnx.ModelProto:
    """Inverted bottlenecks with HardSwish and Clip; depthwise, grouped and dilated convolutions."""
    net = Builder((1, 3, 66, 78), 2)
    six = net.constant(0), net.constant(6)
    x = net.op("HardSwish", net.conv("x", 3, 16, strides=[2, 2]))
    for kernel, stride in ((3, 1), (5, 2), (3, 1)):
        y = net.op("HardSwish", net.conv(x, 16, 48, 1))
        y = net.conv(y, 48, 48, kernel, group=48, strides=[stride] * 2)
        y = net.conv(net.op("Clip", y, *six), 48, 16, 1)
        x = net.op("Add", x, y) if stride == 1 else y
    x = net.op("Relu", net.conv(x, 16, 32, group=4))
    x = net.op("HardSwish", net.conv(x, 32, 24, dilations=[2, 2]))
    return net.model(net.linear(net.pooled(x), 24, 10), x)


def squeeze_excite() -> onnx.ModelProto:
    """Gates of channels: HardSigmoid and Sigmoid of two small products behind a mean."""
    net = Builder((1, 4, 28, 26), 3)
    x = net.op("Relu", net.conv("x", 4, 32))
    for gate in ("HardSigmoid", "Sigmoid"):
        y = net.conv(x, 32, 32)
        squeezed = net.op("Relu", net.conv(net.op("GlobalAveragePool", y), 32, 8, 1))
        y = net.op("Mul", y, net.op(gate, net.conv(squeezed, 8, 32, 1)))
        x = net.op("Add", x, y)
    x = net.op("Mul", x, net.op("Sigmoid", x))
    return net.model(net.linear(net.pooled(x), 32, 12), x)


def attention() -> onnx.ModelProto:
    """Two transformer blocks of two heads on 9 tokens: LayerNormalization, Softmax, Gelu."""
    width, heads = 32, 2
    net = Builder((1, 9, width), 4)

    def normalized(x: str) -> str:
        scale = net.constant(net.rng.uniform(0.5, 2, width))
        return net.op("LayerNormalization", x, scale, net.normal(width, deviation=0.1))

    def part(x: str, perm: list[int]) -> str:
        shape = net.constant([1, 9, heads, width // heads], np.int64)
        return net.op("Transpose", net.op("Reshape", net.linear(x, width, width), shape), perm=perm)

    def attended(x: str) -> str:
        q, k, v = part(x, [0, 2, 1, 3]), part(x, [0, 2, 3, 1]), part(x, [0, 2, 1, 3])
        scores = net.op("Mul", net.op("MatMul", q, k), net.constant(0.25))
        mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
        rows = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = net.op("Reshape", rows, net.constant([1, 9, width], np.int64))
        return net.linear(merged, width, width)

    x = net.op("Add", "x", attended(normalized("x")))
    y = net.op("Gelu", net.linear(normalized(x), width, 48))
    x = normalized(net.op("Add", x, net.linear(y, 48, width)))
    x = normalized(net.op("Add", x, attended(x)))
    return net.model(net.linear(x, width, 24))


def recurrent() -> onnx.ModelProto:
    """An LSTM in both directions and a GRU over 3 steps, and a product."""
    net = Builder((3, 1, 12), 5)
    x, width = "x", 12
    for kind, gates, directions in (("LSTM", 4, 2), ("GRU", 3, 1)):
        weights = net.normal(directions, gates * 16, width, deviation=0.4)
        repeated = net.normal(directions, gates * 16, 16, deviation=0.3)
        bias = net.normal(directions, 2 * gates * 16, deviation=0.1)
        direction = "bidirectional" if directions == 2 else "forward"
        steps = net.op(kind, x, weights, repeated, bias, hidden_size=16, direction=direction)
        rows = net.op("Transpose", steps, perm=[0, 2, 1, 3])
        width = 16 * directions
        x = net.op("Reshape", rows, net.constant([3, 1, width], np.int64))
    return net.model(net.linear(x, width, 10))


def softmax() -> onnx.ModelProto:
    """Softmax between products, of the last axis and of channels; a maximum of rows."""
    net = Builder((2, 40), 6)
    x = net.op("Relu", net.linear("x", 40, 48))
    weights = net.op("Softmax", net.linear(x, 48, 48), axis=-1)
    mixed = net.op("Mul", x, weights)
    rows = net.op("Reshape", net.linear(mixed, 48, 60), net.constant([2, 5, 12], np.int64))
    shares = net.op("Softmax", rows, axis=1)
    most = net.op("ReduceMax", net.op("Mul", rows, shares), net.constant([1], np.int64), keepdims=0)
    return net.model(net.linear(most, 12, 16))


def wide_activations() -> onnx.ModelProto:
    """A residual stream, gates and products, of which some are to be int16."""
    net = Builder((1, 6, 17, 18), 7)
    x = net.conv("x", 6, 20)
    for index in range(3):
        y = net.op("HardSwish", net.conv(x, 20, 36, 1))
        y = net.op("Relu", net.conv(y, 36, 36, group=36 if index == 1 else 1))
        x = net.op("Add", x, net.conv(y, 36, 20, 1))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.linear(net.pooled(net.op("Relu", x)), 20, 10), x)


def pyramid() -> onnx.ModelProto:
    """Pools, nearest and linear Resize, ConvTranspose, Pad, Slice, Concat, DepthToSpace."""
    net = Builder((1, 3, 36, 44), 8)
    x = net.op("LeakyRelu", net.conv("x", 3, 16), alpha=0.1)
    low = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    mean = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    low = net.op("PRelu", net.conv(low, 16, 16), net.constant(net.rng.uniform(0, 0.5, (16, 1, 1))))
    low = net.op("Concat", low, mean, axis=1)
    scales = net.constant([1, 1, 2, 2])
    near = net.op("Resize", low, "", scales, mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")  # fmt: skip
    smooth = net.op("Resize", low, "", scales, mode="linear")
    up = net.op("ConvTranspose", low, net.normal(32, 8, 4, 4, deviation=0.1), strides=[2, 2],
                pads=[1] * 4)  # fmt: skip
    x = net.op("Concat", x, near, net.op("Relu", up), smooth, axis=1)
    starts, ends, axes = (net.constant(v, np.int64) for v in ([4], [84], [1]))
    x = net.conv(net.op("Slice", x, starts, ends, axes), 80, 16, 1)
    x = net.op("Pad", x, net.constant([0, 0, 1, 0, 0, 0, 1, 2], np.int64), mode="reflect")
    return net.model(net.op("DepthToSpace", net.conv(x, 16, 16, pads=[0] * 4), blocksize=2))


def functions_on_sums() -> onnx.ModelProto:
    """Layers of many products with functions that they compute on their sums, and others."""
    net = Builder((1, 32, 15, 14), 9)
    x = "x"
    for function in ("HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Gelu", "Tanh", "Softplus"):
        attributes = {"approximate": "tanh"} if function == "Gelu" else {}
        y = net.op(function, net.conv(x, 32, 32), **attributes)
        x = net.op("Add", x, y) if function == "HardSigmoid" else y
    y = net.conv(x, 32, 32)
    x = net.op("Mul", y, net.op("Sigmoid", y))
    return net.model(net.linear(net.pooled(x), 32, 10), x)


def tables() -> onnx.ModelProto:
    """Chains of functions of one value, which become tables, and elementwise arithmetic."""
    net = Builder((3, 30), 10)
    x = net.linear("x", 30, 33)
    for function in ("Erf", "Sigmoid", "Abs", "Sqrt", "Exp", "Neg", "Softsign", "Mish"):
        y = net.op(function, x)
        x = net.op("Add", net.op("Mul", y, net.constant(1.5)), net.constant(0.25))
        if function in ("Abs", "Neg"):
            x = net.op("Max", x, net.op("Tanh", net.linear(x, 33, 33)))
    y = net.op("Min", net.op("Mul", x, x), net.linear(x, 33, 33))
    return net.model(net.linear(net.op("Clip", y, net.constant(-1), net.constant(2)), 33, 12))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        residual,
        depthwise,
        squeeze_excite,
        attention,
        recurrent,
        softmax,
        wide_activations,
        pyramid,
        functions_on_sums,
        tables,
    )
}


def samples(model: onnx.ModelProto, count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Normal inputs of a network."""
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]
