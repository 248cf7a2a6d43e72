"""Transformers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.generators.onnx_models.drawing import Value
from tests.generators.onnx_models.network_drawing import NetworkDrawing


@dataclass
class Transformer:
    """Blocks of attention and Gelu on x [N, T, width].

    ``low`` is the number by which a causal mask hides what comes later, None for no mask.
    Normalizations are before the parts of a block, or behind; they have one pair of parameters if
    ``is_shared``, else a scale of any magnitude each.  ``bias``: whether biases are not 0.
    """

    d: NetworkDrawing
    x: Value
    heads: int
    low: float | None = None
    is_before: bool = True
    is_shared: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        width = self.width
        self.shared = (self.d.filled(1, width), self.d.filled(0, width)) if self.is_shared else None

    @property
    def width(self) -> int:
        return self.x.shape[2]

    def result(self, blocks: int, classes: int) -> Value:
        x = self.x
        for _ in range(blocks):
            for part in (self.attention, self.feed_forward):
                if self.is_before:
                    x = self.d.inner("Add", x, part(self.normalized(x)))
                else:
                    x = self.normalized(self.d.inner("Add", x, part(x)))
        return self.linear(self.normalized(x), classes)

    def attention(self, x: Value) -> Value:
        d, size = self.d, self.width // self.heads
        q, k, v = (
            d.inner(
                "Transpose",
                d.inner("Reshape", self.linear(x, self.width), shape=[0, 0, self.heads, size]),
                perm=perm,
            )
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = d.inner("Mul", d.inner("MatMul", q, k), d.filled(1 / np.sqrt(size)))
        if self.low is not None:
            scores = d.inner("Where", self.later(), d.filled(self.low), scores)
        mixed = d.inner("MatMul", d.inner("Softmax", scores, axis=-1), v)
        rows = d.inner("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.linear(d.inner("Reshape", rows, shape=[0, 0, self.width]), self.width)

    def feed_forward(self, x: Value) -> Value:
        return self.linear(self.d.inner("Gelu", self.linear(x, 2 * self.width)), self.width)

    def later(self) -> Value:
        """Mask of the places, on the last axis, that come behind another."""
        d = self.d
        length = d.inner("Squeeze", d.inner("Shape", self.x, start=1, end=2))
        first, step = (d.constant(np.int64(number)) for number in (0, 1))
        places = d.shaped(self.x.shape[1:2], "Range", first, length, step)
        return d.inner("Less", d.inner("Unsqueeze", places, axes=[1]), places)

    def linear(self, x: Value, columns: int) -> Value:
        product = self.d.inner("MatMul", x, self.d.filters(x.shape[2], columns))
        bias = self.d.small(columns) if self.bias else self.d.filled(0, columns)
        return self.d.inner("Add", product, bias)

    def normalized(self, x: Value) -> Value:
        return self.d.inner("LayerNormalization", x, *(self.shared or self.parameters()))

    def parameters(self) -> tuple[Value, Value]:
        gamma = 10 ** self.d.rng.uniform(-1, 1, self.width)
        beta = self.d.small(self.width) if self.bias else self.d.filled(0, self.width)
        return self.d.constant(gamma.astype(np.float32)), beta
