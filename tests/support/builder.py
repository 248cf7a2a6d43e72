"""Small graphs: NCHW values with Transposes around every spatial operator, as the importer writes
them, or NHWC values, as the optimizer leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import (
    AveragePool,
    BatchNormalization,
    Conv,
    Gemm,
    MaxPool,
    ReduceMean,
    Reshape,
    Slice,
    Transpose,
)
from quantglow.ir.types import ElementType, f32
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


class Builder:
    """Makes nodes with unique names and drawn weights.

    Values are NHWC if ``channels_last``, else NCHW.  The channels of weights differ by three
    decades if ``spread``.  Weights of one shape are one Constant if ``shared``, as in models whose
    layers share an initializer.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        channels_last: bool = False,
        spread: bool = False,
        shared: bool = False,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.channels_last, self.spread, self.shared = channels_last, spread, shared
        self.known: dict[tuple[int, ...], Constant] = {}
        self.inputs: list[Input] = []
        self.count = 0

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def input(self, *shape: int) -> Input:
        input = Input(name=self.name("input"), tensor=f32(*shape))
        self.inputs.append(input)
        return input

    def constant(self, value: Any) -> Constant:
        return Constant(name=self.name("c"), value=np.array(value, np.float32, order="C"))

    def make_constant(self, value: np.ndarray, element: ElementType) -> Constant:
        return Constant(name=self.name("c"), value=value, element=element)

    def drawn(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Constant:
        return self.constant(self.random.uniform(low, high, shape))

    def weights(self, *shape: int) -> Constant:
        """Weights of a layer, their last axis the channels of its result."""
        built = self.drawn(*shape)
        if self.spread:
            built = self.constant(built.value * 10 ** self.random.uniform(-2, 1, shape[-1]))
        return self.known.setdefault(shape, built) if self.shared else built

    def make(self, op: type[Node], **fields: Any) -> Node:
        return op(name=self.name(), **fields)

    def transpose(self, x: Node, *perm: int) -> Node:
        return self.make(Transpose, x=x, perm=perm)

    def spatial(self, op: type[Node], x: Node, **fields: Any) -> Node:
        """An NHWC operator on a value."""
        if self.channels_last:
            return self.make(op, x=x, **fields)
        built = self.make(op, x=self.transpose(x, *TO_NHWC), **fields)
        return self.transpose(built, *TO_NCHW)

    def channels(self, x: Node) -> int:
        """Number of channels of an image."""
        return x.type.shape[3 if self.channels_last else 1]

    def conv(self, x: Node, channels: int, kernel: int = 1, group: int = 1, **fields: Any) -> Node:
        w = self.weights(kernel, kernel, self.channels(x) // group, channels)
        fields = {"b": self.weights(channels), "pads": (kernel // 2,) * 4, "group": group, **fields}
        return self.spatial(Conv, x, w=w, **fields)

    def batch_norm(self, x: Node) -> Node:
        c = self.channels(x)
        parameters = {k: self.drawn(c, low=0.5, high=2.0) for k in ("gamma", "beta", "mean", "var")}
        return self.spatial(BatchNormalization, x, **parameters)

    def max_pool(self, x: Node) -> Node:
        return self.spatial(MaxPool, x, kernel=(2, 2), pads=(0, 0, 1, 1))

    def average_pool(self, x: Node) -> Node:
        return self.spatial(AveragePool, x, kernel=(2, 2), pads=(1, 1, 0, 0))

    def global_mean(self, x: Node, keepdims: bool = True) -> Node:
        axes = (1, 2) if self.channels_last else (2, 3)
        return self.make(ReduceMean, x=x, axes=axes, keepdims=keepdims)

    def gemm(self, x: Node, columns: int, **fields: Any) -> Node:
        w = self.weights(x.type.shape[1], columns)
        return self.make(Gemm, x=x, w=w, b=self.weights(columns), **fields)

    def reshape(self, x: Node, *shape: int) -> Node:
        return self.make(Reshape, x=x, shape=shape)

    def choose(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]

    def graph(self, *outputs: Node) -> Graph:
        named = tuple((f"output{i}", node) for i, node in enumerate(outputs))
        return Graph(inputs=tuple(self.inputs), outputs=named)


def assert_same_function(before: Graph, after: Graph) -> None:
    """Check that both graphs are well formed and give the same outputs, to float32 rounding."""
    after.verify()
    feeds = feeds_of(before)
    assert_equal_values(interpret(after, feeds), interpret(before, feeds))


def ops_of(graph: Graph) -> list[str]:
    """The operators of a graph in order, without inputs and Constants."""
    return [node.op for node in graph.compute_nodes()]


def rewritten(step: Any, builder: Builder, outputs: Sequence[Node]) -> Graph:
    """The graph after one pass, which must keep its function."""
    before = builder.graph(*outputs)
    after: Graph = step(before)
    assert_same_function(before, after)
    return after


def cut(b: Builder, x: Node, start: int, size: int, axis: int = 1, step: int = 1) -> Node:
    """``size`` elements along one axis of x."""
    starts, sizes, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return b.make(Slice, x=x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
