"""Networks for microcontrollers: those of MLPerf Tiny, two of the same sizes with random weights,
and those of the benchmarks that fit on a board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

import quantglow as qg
from benchmarks.networks import registry
from quantglow.runtime.compiled import CompiledModel
from quantglow.support.arrays import Array
from tools.downloads import mlperf_tiny
from tools.pinned_graphs import with_integer_outputs
from tools.small_networks import Builder
from tools.small_networks import samples as normal_samples

SAMPLES = 4
Channels = tuple[int, int, int]
"""Channels of a layer's input and output, and the stride of its windows."""


@dataclass(frozen=True)
class Network:
    """A model and inputs for it."""

    model: onnx.ModelProto
    samples: list[dict[str, Array]]


def trained(task: str) -> Network:
    """A network of MLPerf Tiny.  Raises ``FileNotFoundError`` if it was not converted."""
    model = onnx.load(mlperf_tiny.model_file(task))
    (port,) = model.graph.input
    return Network(model, [{port.name: sample} for sample in mlperf_tiny.samples(task, SAMPLES)])


def benchmark(name: str) -> Network:
    """A network of the benchmarks."""
    chosen = registry.network(name)
    return Network(onnx.load(chosen.path()), list(chosen.feeds(SAMPLES)))


def untrained(build: Callable[[], onnx.ModelProto]) -> Network:
    """A network with random weights."""
    model = build()
    return Network(model, normal_samples(model, SAMPLES))


def keyword_spotting() -> onnx.ModelProto:
    """DS-CNN: windows of 10 x 4, four separable layers of 64 channels."""
    net = Builder((1, 1, 49, 10), 1)
    weights, bias = net.normal(64, 1, 10, 4, deviation=0.2), net.normal(64, deviation=0.2)
    x = net.op("Conv", "x", weights, bias, pads=[4, 1, 5, 1], strides=[2, 2])
    x = separable(net, net.op("Relu", x), [(64, 64, 1)] * 4)
    return net.model(net.linear(net.pooled(x), 64, 12))


def visual_wake_words() -> onnx.ModelProto:
    """MobileNetV1 with a quarter of the channels, 96 x 96 pixels."""
    net = Builder((1, 3, 96, 96), 2)
    layers = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    layers += [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    x = net.op("Relu", net.conv("x", 3, 8, strides=[2, 2]))
    return net.model(net.linear(net.pooled(separable(net, x, layers)), 256, 2))


def recurrent(kind: str, hidden: int, features: int = 32, steps: int = 10) -> onnx.ModelProto:
    """An LSTM or GRU on a sequence of features, and a linear layer on its last state."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    net = Builder((steps, 1, features), hidden)
    spread = 2 / hidden**0.5
    widths = (features, hidden, 2)
    w, r, b = (net.rng.uniform(-spread, spread, (1, gates * hidden, n)) for n in widths)
    weights = [net.constant(value) for value in (w, r, b.reshape(1, -1))]
    settings = {"linear_before_reset": 1} if kind == "GRU" else {}
    every = net.op(kind, "x", *weights, hidden_size=hidden, **settings)
    last = net.op("Gather", every, net.constant(-1, np.int64), axis=0)
    flat = net.op("Reshape", last, net.constant([1, hidden], np.int64))
    return net.model(net.linear(flat, hidden, 12))


def separable(net: Builder, x: str, layers: list[Channels]) -> str:
    """Depthwise convolutions of 3 x 3, each followed by one of 1 x 1."""
    for inputs, outputs, stride in layers:
        x = net.op("Relu", net.conv(x, inputs, inputs, group=inputs, strides=[stride] * 2))
        x = net.op("Relu", net.conv(x, inputs, outputs, 1))
    return x


NETWORKS: dict[str, Callable[[], Network]] = {
    **{task: partial(trained, task) for task in mlperf_tiny.SOURCES},
    **{name: partial(benchmark, name) for name in ("mnist", "ppocr_cls")},
    "random_keyword_spotting": partial(untrained, keyword_spotting),
    "random_visual_wake_words": partial(untrained, visual_wake_words),
    **{
        f"random_{kind.lower()}_{hidden}": partial(untrained, partial(recurrent, kind, hidden))
        for kind in ("LSTM", "GRU")
        for hidden in (32, 64, 128)
    },
}


def quantized(network: Network) -> CompiledModel:
    """A network whose outputs are integers."""
    data = network.samples
    shapes = {name: sample.shape for name, sample in data[0].items()}
    graph = qg.import_model(network.model, input_shapes=shapes)
    profile = qg.profile(graph, data, progress=False)
    config = qg.QuantizationConfig(quantize_output=True)
    compiled = qg.compile(with_integer_outputs(qg.quantize(graph, profile, config, data=data)))
    assert isinstance(compiled, CompiledModel)
    return compiled
