"""Small float networks, and helpers to quantize them."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Concat, Conv, Gemm, MaxPool, ReduceMean, Softmax
from quantglow.ir.types import f32
from quantglow.profiling import profile
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.equalize.sample_statistics import ChannelReach, FloatRuns
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.quantizer import quantize_for_all_shapes
from quantglow.quantization.search.fake_quantization import compared_nodes
from quantglow.support.arrays import Array

INF = float("inf")


def constant(name: str, value: Any) -> Constant:
    return Constant(name=name, value=np.asarray(value, np.float32))


def conv(name: str, x: Node, channels: int, kernel: int = 3, seed: int = 0, **options: Any) -> Conv:
    """A Conv with He-initialised weights and a small bias; pads keep the size."""
    rng = np.random.default_rng(seed + sum(map(ord, name)))
    fan_in = kernel * kernel * x.type.shape[3]
    w = rng.normal(size=(kernel, kernel, x.type.shape[3], channels)) * np.sqrt(2 / fan_in)
    b = rng.normal(size=channels) * 0.1
    options.setdefault("pads", (kernel // 2,) * 4)
    return Conv(name=name, x=x, w=constant(f"{name}_w", w), b=constant(f"{name}_b", b), **options)


def image(channels: int = 8, size: int = 6) -> Input:
    return Input(name="x", tensor=f32(1, size, size, channels))


def graph_of(*outputs: Node, inputs: tuple[Input, ...]) -> Graph:
    return Graph(inputs=inputs, outputs=tuple((n.name, n) for n in outputs), source_hash="test")


def samples_for(graph: Graph, count: int = 4, seed: int = 1) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [
        {i.name: rng.normal(size=i.type.shape).astype(np.float32) for i in graph.inputs}
        for _ in range(count)
    ]


def quantized(graph: Graph, **options: Any) -> Any:
    """The int8 graph and the report, profiled on ``samples_for``."""
    profiled = profile(graph, samples_for(graph), progress=False)
    quantized = quantize_for_all_shapes(graph, profiled, QuantizationConfig(**options))
    quantized.graph.verify()
    return quantized.graph, quantized.report


def sqnr(graph: Graph, other: Graph) -> float:
    """Signal to quantization noise over all outputs, in dB."""
    signal = noise = 1e-30
    for feeds in samples_for(graph):
        for a, b in zip(interpret(graph, feeds), interpret(other, feeds), strict=True):
            signal += float(np.sum(a.astype(np.float64) ** 2))
            noise += float(np.sum((a.astype(np.float64) - b) ** 2))
    return 10 * float(np.log10(signal / noise))


def compared_values(graph: Graph, feeds: Feeds) -> list[Array]:
    """The float values by which the outputs are compared."""
    return FloatRuns(graph).results(feeds, compared_nodes(graph))


def sandwich(make: Any, channels: int = 8) -> Graph:
    """Conv -> the node under test -> pointwise Conv, so that the node must be int8."""
    x = image(channels)
    first = conv("first", x, channels)
    node = make(first)
    last = conv("last", node, 5, kernel=1) if node.type.rank == 4 else node
    return graph_of(last, inputs=(x,))


def small_cnn() -> Graph:
    """Conv, residual Conv, pool, Concat of two branches, mean, Gemm, Softmax."""
    x = image(4, 8)
    c1 = conv("c1", x, 8, low=0.0)
    c2 = conv("c2", c1, 8, low=0.0)
    c3 = conv("c3", c2, 8, low=0.0, residual=c1)
    pool = MaxPool(name="pool", x=c3, kernel=(2, 2), strides=(2, 2))
    left, right = conv("left", pool, 6, kernel=1, low=0.0), conv("right", pool, 6, low=0.0)
    joined = Concat(name="joined", parts=(left, right), axis=3)
    mean = ReduceMean(name="mean", x=joined, axes=(1, 2), keepdims=False)
    rng = np.random.default_rng(5)
    w, b = constant("fc_w", rng.normal(size=(12, 10)) * 0.5), constant("fc_b", np.zeros(10))
    fc = Gemm(name="fc", x=mean, w=w, b=b)
    return graph_of(Softmax(name="prob", x=fc), inputs=(x,))


def reach_of(graph: Graph, samples: list[dict[str, Array]]) -> dict[str, Array]:
    """The largest magnitude in each channel of every value."""
    names = {node.name for node in graph.nodes if not isinstance(node, Constant)}
    FloatRuns(graph).collect(samples, reach := ChannelReach(graph, names))
    return reach.by_name
