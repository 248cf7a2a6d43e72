"""A code generator of graph segments: matrix products by NumPy, the rest by quantglow.

Run it: ``python examples/numpy_backend.py``.  ``README.md`` beside it explains every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quantglow as qg
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops import Gemm, MatMul, Mul, Relu, Sigmoid, Softmax, Tanh
from quantglow.ir.types import f32

Array = NDArray[Any]
Step = Callable[[list[Array]], Array]
"""Computes a node from the arrays of its operands."""


# Step 1: what can it do?


def product(node: Node) -> Step | None:
    """Gemm with its fused bounds, or MatMul of float32."""
    if isinstance(node, Gemm) and node.x.type.quant is not None:
        return lambda operands: int8_gemm(node, *operands)
    if not all(value.type.dtype.is_float for value in (node, *node.operands)):
        return None
    if isinstance(node, MatMul):
        return lambda operands: operands[0] @ operands[1]
    if isinstance(node, Gemm):
        return lambda operands: gemm(node, *operands)
    return None


def gemm(node: Gemm, x: Array, w: Array, b: Array | None = None) -> Array:
    y = x @ w
    if b is not None:
        y += b
    return y if node.low == -np.inf and node.high == np.inf else y.clip(node.low, node.high)


def int8_gemm(node: Gemm, x: Array, w: Array, b: Array | None = None) -> Array:
    """The sums are exact in int32; ``finish`` rounds each of them once."""
    centered = x.astype(np.int32) - node.x.type.params.zero_point
    return node.finish(centered @ w.astype(np.int32), b, None)


ACTIVATIONS: dict[type[Node], Callable[[Array], Array]] = {
    Relu: lambda x: np.maximum(x, 0),
    Sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    Tanh: np.tanh,
}


def activation(node: Node) -> Step | None:
    """An activation right behind a product: elsewhere quantglow's own code is faster."""
    function = ACTIVATIONS.get(type(node))
    if function is None or not node.type.dtype.is_float or product(node.operands[0]) is None:
        return None
    return lambda operands: function(operands[0])


# Step 2: how does a segment run?


@dataclass(frozen=True)
class NumpyExecutable:
    """The nodes of a segment in order, each with its step.  Nothing changes while it runs, so any
    number of threads may run it at once."""

    segment: qg.Graph
    steps: tuple[tuple[Node, Step], ...]
    constants: Mapping[Node, Array]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        values = {node: feeds[node.name] for node in self.segment.inputs}
        values.update(self.constants)
        for node, step in self.steps:
            values[node] = step([values[operand] for operand in node.operands])
        kinds = [(node, node.type.dtype.numpy) for _, node in self.segment.outputs]
        return [np.asarray(values[node], kind) for node, kind in kinds]


# Step 3: the backend itself.


@dataclass(frozen=True)
class NumpyBackend:
    """Matrix products, and the activations behind those of float32."""

    name: str = "numpy"

    def supports(self, node: Node) -> bool:
        return (product(node) or activation(node)) is not None

    def compile(self, segment: qg.Graph, target: str, num_threads: int) -> NumpyExecutable:
        """``target`` and ``num_threads`` are what the user asked for; BLAS has its own mind."""
        steps, constants = [], {}
        for node in segment.nodes:
            if isinstance(node, Constant):
                constants[node] = node.value
            elif not isinstance(node, Input):
                step = product(node) or activation(node)
                assert step is not None
                steps.append((node, step))
        return NumpyExecutable(segment, tuple(steps), constants)


# Step 4: use it.


def perceptron(seed: int = 0) -> qg.Graph:
    """x [32, 256] -> Gemm, Relu -> times its Softmax -> Gemm, Tanh."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> Constant:
        return Constant(name=name, value=rng.standard_normal(shape).astype(np.float32) / 16)

    x = Input(name="x", tensor=f32(32, 256))
    hidden = Gemm(name="hidden", x=x, w=weight("w1", 256, 512), b=weight("b1", 512))
    active = Relu(name="active", x=hidden)
    gate = Softmax(name="gate", x=active)
    gated = Mul(name="gated", x=active, y=gate)
    scores = Gemm(name="scores", x=gated, w=weight("w2", 512, 10), b=weight("b2", 10))
    return qg.Graph(inputs=(x,), outputs=(("y", Tanh(name="y", x=scores)),))


def main() -> None:
    graph = perceptron()
    compiled = qg.compile(graph, backends=[NumpyBackend()])
    print(compiled.report)
    x = np.random.default_rng(1).standard_normal((32, 256)).astype(np.float32)
    difference = np.abs(compiled(x) - qg.interpret(graph, {"x": x})[0]).max()
    print(f"largest difference from the interpreter: {difference:.2g}")


if __name__ == "__main__":
    main()
