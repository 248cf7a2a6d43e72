"""ResNet-50 v1.5 and MobileNetV2 as ONNX, with He-initialised weights.

The topology is torchvision's; Conv, BatchNormalization and Relu or Clip stay separate nodes, as an
exporter writes them.  With random weights alone the activations would drift, so the BatchNorm
statistics are measured: the network is built with batch statistics in place of
BatchNormalization, run on photographs, and built again with the measured statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks.samples import imagenet_photos

Array = NDArray[np.float32]
Topology = Callable[["Builder", str], str]
OPSET, IR_VERSION, SIDE, CLASSES = 17, 8, 224, 1000
STATISTICS_PHOTOS = 8
EPSILON = 1e-5
BRANCH_GAIN = 0.3
"""Gain of a residual branch over its shortcut, about that of trained networks."""


class Builder:
    """Appends nodes.  The weights depend on the seed and the order of calls only.

    Without ``statistics`` every BatchNorm normalises by the batch's own mean and variance, which
    become graph outputs; with them it is a BatchNormalization node.
    """

    def __init__(self, seed: int, statistics: dict[str, Array] | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.statistics = statistics
        self.counts: Counter[str] = Counter()
        self.measured: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        self.counts[op] += 1
        output = f"{op.lower()}_{self.counts[op]}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def he_weights(self, shape: tuple[int, ...]) -> Array:
        """Normal with variance 2 / fan-in; the fan-in is all but the first axis."""
        deviation = np.float32(np.sqrt(2 / np.prod(shape[1:])))
        return self.rng.standard_normal(shape, dtype=np.float32) * deviation

    def conv(
        self,
        x: str,
        shape: tuple[int, int, int, int],
        stride: int,
        group: int = 1,
        gain: float = 1.0,
    ) -> str:
        """A square convolution without bias, padded to keep the size, and its BatchNorm."""
        kernel = shape[2]
        weight = self.constant(f"conv_{self.counts['Conv'] + 1}.weight", self.he_weights(shape))
        y = self.node(
            "Conv",
            [x, weight],
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            group=group,
        )
        return self.batch_norm(y, shape[0], gain)

    def batch_norm(self, x: str, channels: int, gain: float) -> str:
        name = f"bn_{x}"
        gamma = gain * self.rng.uniform(0.6, 1.4, channels).astype(np.float32)
        beta = gain * self.rng.normal(0, 0.3, channels).astype(np.float32)
        if self.statistics is None:
            return self.normalize_by_batch(x, name, gamma, beta)
        mean, variance = self.statistics[f"{name}.mean"], self.statistics[f"{name}.var"]
        parameters = {"weight": gamma, "bias": beta, "mean": mean, "var": variance}
        names = [self.constant(f"{name}.{key}", value) for key, value in parameters.items()]
        return self.node("BatchNormalization", [x, *names], epsilon=EPSILON)

    def normalize_by_batch(self, x: str, name: str, gamma: Array, beta: Array) -> str:
        """gamma * (x - mean) / sqrt(var + eps) + beta, and mean and var as graph outputs."""
        axes = [0, 2, 3]
        mean = self.node("ReduceMean", [x], axes=axes)
        centered = self.node("Sub", [x, mean])
        square = self.node("Mul", [centered, centered])
        variance = self.node("ReduceMean", [square], axes=axes)
        for source, key in ((mean, "mean"), (variance, "var")):
            self.nodes.append(helper.make_node("Identity", [source], [f"{name}.{key}"]))
            self.measured.append(f"{name}.{key}")
        epsilon = self.constant(f"{name}.eps", np.array(EPSILON, np.float32))
        deviation = self.node("Sqrt", [self.node("Add", [variance, epsilon])])
        normal = self.node("Div", [centered, deviation])
        scale = self.constant(f"{name}.gamma", gamma[:, None, None])
        shift = self.constant(f"{name}.beta", beta[:, None, None])
        return self.node("Add", [self.node("Mul", [normal, scale]), shift])

    def relu(self, x: str) -> str:
        return self.node("Relu", [x])

    def relu6(self, x: str) -> str:
        low = self.constant(f"clip_{self.counts['Clip'] + 1}.min", np.array(0, np.float32))
        high = self.constant(f"clip_{self.counts['Clip'] + 1}.max", np.array(6, np.float32))
        return self.node("Clip", [x, low, high])

    def classifier(self, x: str, channels: int) -> str:
        """Global average, flatten, Gemm to the 1,000 classes."""
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        weight = self.constant("fc.weight", self.he_weights((CLASSES, channels)))
        bias = self.constant("fc.bias", self.rng.normal(0, 0.1, CLASSES).astype(np.float32))
        self.nodes.append(
            helper.make_node("Gemm", [pooled, weight, bias], ["logits"], name="logits", transB=1)
        )
        return "logits"

    def model(self, name: str, batch: int) -> onnx.ModelProto:
        make = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
        outputs = [make("logits", shape=[batch, CLASSES])]
        outputs += [make(key, shape=None) for key in self.measured]
        inputs = [make("input", shape=[batch, 3, SIDE, SIDE])]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def bottleneck(net: Builder, x: str, channels_in: int, width: int, stride: int) -> str:
    """1x1, 3x3 with the stride (v1.5), 1x1, plus the input, projected where the shape changes."""
    out = 4 * width
    y = net.relu(net.conv(x, (width, channels_in, 1, 1), 1))
    y = net.relu(net.conv(y, (width, width, 3, 3), stride))
    y = net.conv(y, (out, width, 1, 1), 1, gain=BRANCH_GAIN)
    if stride != 1 or channels_in != out:
        x = net.conv(x, (out, channels_in, 1, 1), stride)
    return net.relu(net.node("Add", [y, x]))


def resnet50(net: Builder, x: str) -> str:
    """Stages of 3, 4, 6 and 3 bottlenecks, 64 to 512 wide."""
    x = net.relu(net.conv(x, (64, 3, 7, 7), 2))
    x = net.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, count, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            x = bottleneck(net, x, channels, width, 1 if index else first_stride)
            channels = 4 * width
    return net.classifier(x, channels)


def inverted_residual(net: Builder, x: str, c_in: int, c_out: int, stride: int, ratio: int) -> str:
    """Expand 1x1, depthwise 3x3, project 1x1 without activation, plus the input where it fits."""
    hidden, y = c_in * ratio, x
    if ratio != 1:
        y = net.relu6(net.conv(y, (hidden, c_in, 1, 1), 1))
    y = net.relu6(net.conv(y, (hidden, 1, 3, 3), stride, group=hidden))
    if stride != 1 or c_in != c_out:
        return net.conv(y, (c_out, hidden, 1, 1), 1)
    return net.node("Add", [x, net.conv(y, (c_out, hidden, 1, 1), 1, gain=BRANCH_GAIN)])


def mobilenet_v2(net: Builder, x: str) -> str:
    """Width 1.0: seven groups of inverted residuals (ratio, channels, count, stride)."""
    x = net.relu6(net.conv(x, (32, 3, 3, 3), 2))
    channels = 32
    groups = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for ratio, out, count, first_stride in (*groups, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for index in range(count):
            x = inverted_residual(net, x, channels, out, 1 if index else first_stride, ratio)
            channels = out
    x = net.relu6(net.conv(x, (1280, channels, 1, 1), 1))
    return net.classifier(x, 1280)


def measure_statistics(topology: Topology, seed: int) -> dict[str, Array]:
    """Mean and variance [C] before every BatchNorm, over a few photographs."""
    twin = Builder(seed)
    topology(twin, "input")
    model = twin.model("twin", STATISTICS_PHOTOS)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = session.run(twin.measured, {"input": imagenet_photos(STATISTICS_PHOTOS, seed)})
    return {
        key: np.ravel(np.asarray(value, np.float32))
        for key, value in zip(twin.measured, values, strict=True)
    }


def build(topology: Topology, batch: int = 1, seed: int = 0) -> onnx.ModelProto:
    """The network at a fixed batch size: ``input`` [batch, 3, 224, 224] -> ``logits``."""
    net = Builder(seed, measure_statistics(topology, seed))
    topology(net, "input")
    model = net.model(topology.__name__, batch)
    onnx.checker.check_model(model, full_check=True)
    return model
