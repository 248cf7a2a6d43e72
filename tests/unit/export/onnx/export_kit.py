"""Drawn operands for graphs to export."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.ir import ops
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node
from quantglow.ir.ops.activation import Activation
from quantglow.ir.types import DType, ElementType, QuantParams, f32

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
        input = Input(name=self.name(), tensor=f32(*shape))
        self.inputs.append(input)
        return input

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
        """Weights with a scale for each channel, or with one scale."""
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
