"""A whole network under construction, with dimensions that may be free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from quantglow.support.arrays import Array
from tests.generators.onnx_models.drawing import FLOAT, INTEGER, Drawing, Value

Dims = Sequence[str | int]
Shape = tuple[int, ...]
Sample = dict[str, Array]
MEAN, DEVIATION = np.float32(0.45), np.float32(0.22)


@dataclass(frozen=True)
class Network:
    """A model, the shapes of its inputs in calibration, and further ones."""

    proto: onnx.ModelProto
    calibrated: tuple[tuple[Shape, ...], ...]
    others: tuple[tuple[Shape, ...], ...] = ()
    words: int = 0
    """Number of words, if inputs are words; those of rank 4 are images, all others normal."""

    def sample(self, shapes: Sequence[Shape], seed: int) -> Sample:
        """Inputs of these shapes."""
        rng = np.random.default_rng([seed, *(size for shape in shapes for size in shape)])
        return {f"x{i}": self.values(rng, shape) for i, shape in enumerate(shapes)}

    def values(self, rng: np.random.Generator, shape: Shape) -> Array:
        """Words, normalized bytes, or normal numbers."""
        if self.words:
            return rng.integers(0, self.words, shape)
        if len(shape) == 4:
            pixels = rng.integers(0, 256, shape).astype(np.float32)
            return (pixels / np.float32(255) - MEAN) / DEVIATION
        return rng.standard_normal(shape).astype(np.float32)


@dataclass
class NetworkDrawing(Drawing):
    """A network under construction: values have the sizes of one shape, ``dims`` the free ones."""

    opset: int = 20
    most_elements: int = 1 << 20
    dims: list[Dims] = field(default_factory=list)

    def free_input(self, shape: Shape, dims: Dims, *, is_word: bool = False) -> Value:
        self.dims.append(dims)
        return self.input(INTEGER if is_word else FLOAT, shape)

    def filters(self, *shape: int, scale: float = 1.0) -> Value:
        """Weights of the standard deviation ``scale / sqrt(fan in)``; filters differ in size."""
        fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        spread = 4 ** self.rng.uniform(-1, 1, (shape[0], 1, 1, 1)) if len(shape) == 4 else 1.0
        array = self.rng.standard_normal(shape) * (scale * spread / np.sqrt(fan_in))
        return self.constant(array.astype(np.float32))

    def filled(self, number: float, *shape: int) -> Value:
        return self.constant(np.full(shape, number, np.float32))

    def small(self, *shape: int) -> Value:
        """Numbers around 0, such as biases."""
        return self.constant((0.1 * self.rng.standard_normal(shape)).astype(np.float32))

    def both(self, op: str, *operands: Value | None, **settings: Any) -> tuple[Value, Value]:
        """The first two results of an operator."""
        first, second = self.add(op, operands, 2, settings)
        return first, second

    def classifier(self, x: Value, classes: int) -> Value:
        """Means of the channels of an image, and a Gemm."""
        flat = self.inner("Flatten", self.inner("GlobalAveragePool", x))
        return self.inner("Gemm", flat, self.filters(x.shape[1], classes), self.filled(0, classes))

    def proto(self, output: Value, dims: Dims) -> onnx.ModelProto:
        """The checked model."""
        make = helper.make_tensor_value_info
        inputs = zip(self.inputs, self.dims, strict=True)
        graph = helper.make_graph(
            self.nodes,
            "network",
            [make(value.name, value.element, dims) for value, dims in inputs],
            [make(output.name, FLOAT, dims)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(model)
        return model


def drawing(seed: int) -> NetworkDrawing:
    """A network under construction; equal seeds and calls give equal models."""
    return NetworkDrawing(np.random.default_rng(seed))
