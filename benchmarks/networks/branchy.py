"""Float graphs with many branches: NASNet and DARTS cells, random wiring, dense blocks, Inception.

They follow the published topologies at ImageNet's or CIFAR's sizes.  Weights are zeros: they play
no part in the order of execution.  Separable convolutions are depthwise and pointwise ones,
BatchNorm is folded, ReLU fused where a convolution comes before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Add, AveragePool, Concat, Conv, MaxPool, Relu
from quantglow.ir.types import f32


class Builder:
    """Makes NHWC nodes with unique names."""

    def __init__(self, side: int, channels: int = 3) -> None:
        self.count = 0
        self.input = Input(name="input", tensor=f32(1, side, side, channels))

    def make(self, op: type[Node], **fields: object) -> Node:
        self.count += 1
        return op(name=f"v{self.count}", **fields)

    @staticmethod
    def channels(x: Node) -> int:
        """The channels of an image."""
        return int(x.type.shape[3])

    def conv(self, x: Node, channels: int, kernel: int = 1, stride: int = 1) -> Node:
        """A convolution with ReLU that keeps the size, but for its stride."""
        return self._conv(x, channels, kernel, stride, 1)

    def _conv(self, x: Node, channels: int, kernel: int, stride: int, group: int) -> Node:
        inputs = self.channels(x) // group
        w = self.make(Constant, value=np.zeros((kernel, kernel, inputs, channels), np.float32))
        pads, strides = (kernel // 2,) * 4, (stride, stride)
        fields = {"strides": strides, "pads": pads, "group": group, "low": 0.0}
        return self.make(Conv, x=x, w=w, **fields)

    def separable(self, x: Node, channels: int, kernel: int = 3, stride: int = 1) -> Node:
        """Depthwise, then pointwise."""
        inputs = self.channels(x)
        depthwise = self._conv(x, inputs, kernel, stride, inputs)
        return self.conv(depthwise, channels)

    def twice(self, x: Node, channels: int, kernel: int = 3, stride: int = 1) -> Node:
        """A separable convolution applied twice, as NASNet and DARTS do."""
        return self.separable(self.separable(x, channels, kernel, stride), channels, kernel)

    def pool(self, op: type[Node], x: Node, stride: int = 1) -> Node:
        fields = {"kernel": (3, 3), "strides": (stride, stride), "pads": (1, 1, 1, 1)}
        return self.make(op, x=x, **fields)

    def add(self, *values: Node) -> Node:
        total = values[0]
        for value in values[1:]:
            total = self.make(Add, x=total, y=value)
        return total

    def concat(self, *parts: Node) -> Node:
        return self.make(Concat, parts=parts, axis=3)

    def graph(self, output: Node) -> Graph:
        return Graph((self.input,), (("output", output),), "branchy")


def nasnet(cells: int = 6, channels: int = 44, side: int = 224) -> Graph:
    """NASNet-A (mobile), normal cells at 28 × 28 after a stem: each reads the last two."""
    b = Builder(side)
    older = newer = b.conv(b.conv(b.conv(b.input, 32, 3, 2), channels, 3, 2), channels, 3, 2)
    for _ in range(cells):
        older, newer = newer, nasnet_cell(b, b.conv(older, channels), b.conv(newer, channels))
    return b.graph(newer)


def nasnet_cell(b: Builder, old: Node, new: Node) -> Node:
    """Five sums of two operators each (Zoph et al. 2018, figure 4)."""
    channels, mean = b.channels(new), partial(b.pool, AveragePool)
    sums = [
        b.add(b.twice(new, channels, 3), new),
        b.add(b.twice(old, channels, 3), b.twice(new, channels, 5)),
        b.add(mean(new), old),
        b.add(mean(old), mean(old)),
        b.add(b.twice(old, channels, 5), b.twice(old, channels, 3)),
    ]
    return b.concat(old, *sums)


def darts(cells: int = 8, channels: int = 48, side: int = 224) -> Graph:
    """DARTS (second order), normal cells at 28 × 28 (Liu et al. 2019, figure 4)."""
    b = Builder(side)
    older = newer = b.conv(b.conv(b.conv(b.input, 24, 3, 2), channels, 3, 2), channels, 3, 2)
    for _ in range(cells):
        older, newer = newer, darts_cell(b, b.conv(older, channels), b.conv(newer, channels))
    return b.graph(newer)


def darts_cell(b: Builder, old: Node, new: Node) -> Node:
    channels = b.channels(new)
    one = b.add(b.twice(old, channels), b.twice(new, channels))
    two = b.add(b.twice(old, channels), b.twice(new, channels))
    three = b.add(b.twice(new, channels), old)
    four = b.add(old, b.separable(one, channels))
    return b.concat(one, two, three, four)


def randwire(
    seed: int, nodes: int = 32, stages: int = 2, channels: int = 78, side: int = 32
) -> Graph:
    """Random wiring: Watts-Strogatz graphs WS(32, 4, 0.75) (Xie et al. 2019)."""
    b, drawn = Builder(side), random.Random(seed)
    x = b.conv(b.input, channels, 3)
    for stage in range(stages):
        x = randwire_stage(b, x, channels << stage, watts_strogatz(nodes, 4, 0.75, drawn))
    return b.graph(x)


def watts_strogatz(
    nodes: int, degree: int, rewired: float, drawn: random.Random
) -> set[tuple[int, int]]:
    """Edges from lower to higher numbers."""
    edges = set[tuple[int, int]]()
    for distance in range(1, degree // 2 + 1):
        for node in range(nodes):
            other = (node + distance) % nodes
            while drawn.random() < rewired and (actual := drawn.randrange(nodes)) != node:
                other = actual
                break
            edges.add((min(node, other), max(node, other)))
    return edges


def randwire_stage(b: Builder, x: Node, channels: int, edges: set[tuple[int, int]]) -> Node:
    """Each node sums what reaches it and is a separable convolution; ends are summed."""
    built: dict[int, Node] = {}
    for node in range(1 + max(map(max, edges))):
        sources = [built[one] for one, other in sorted(edges) if other == node]
        stride = 1 if sources else 2
        built[node] = b.separable(b.add(*sources) if sources else x, channels, 3, stride)
    starts = {one for one, _ in edges}
    return b.add(*(built[node] for node in built if node not in starts))


def densenet(layers: Sequence[int] = (6, 12), growth: int = 32, side: int = 224) -> Graph:
    """Dense blocks of DenseNet-121 with their transitions (Huang et al. 2017)."""
    b = Builder(side)
    x = b.pool(MaxPool, b.conv(b.input, 64, 7, 2), 2)
    for number in layers:
        for _ in range(number):
            x = b.concat(x, b.conv(b.conv(b.make(Relu, x=x), 4 * growth), growth, 3))
        x = b.pool(AveragePool, b.conv(x, b.channels(x) // 2), 2)
    return b.graph(x)


def inception(modules: int = 3, side: int = 35, channels: int = 192) -> Graph:
    """Inception-v3's modules at 35 × 35 (Szegedy et al. 2016)."""
    b = Builder(side, channels)
    x: Node = b.input
    for _ in range(modules):
        double = b.conv(b.conv(b.conv(x, 64), 96, 3), 96, 3)
        pooled = b.conv(b.pool(AveragePool, x), 64)
        x = b.concat(b.conv(x, 64), b.conv(b.conv(x, 48), 64, 5), double, pooled)
    return b.graph(x)


def random_concats(seed: int, convolutions: int = 22, side: int = 32) -> Graph:
    """Convolutions of drawn widths, strides and sources, many of them joined by Concat."""
    b, drawn = Builder(side, 16), random.Random(seed)
    values: list[Node] = [b.input]
    read = set[Node]()
    for _ in range(convolutions):
        sources = drawn.sample(values[-6:], min(len(values[-6:]), drawn.choice([1, 1, 2, 3])))
        read.update(sources)
        x = b.concat(*sources) if len(sources) > 1 else sources[0]
        values.append(b.conv(x, drawn.choice([8, 16, 24, 32, 48, 64]), drawn.choice([1, 3])))
    return b.graph(b.conv(b.concat(*(v for v in values if v not in read)), 16))


BRANCHY: dict[str, Callable[[], Graph]] = {
    "nasnet": nasnet,
    "darts": darts,
    "densenet": densenet,
    "inception": inception,
    **{f"randwire_{seed}": partial(randwire, seed) for seed in range(4)},
    **{f"concats_{seed}": partial(random_concats, seed) for seed in range(12)},
}
"""Graphs by name."""
