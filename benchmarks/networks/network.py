"""A benchmark network: its ONNX file, its inputs, and how its outputs are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import quantglow as qg
from quantglow.ir.ops.work import count_macs

Array = NDArray[Any]
Feeds = dict[str, Array]
Answers = Callable[[NDArray[Any]], NDArray[Any]]
"""Outputs of all samples -> answers, one for each."""
Signal = Callable[[NDArray[Any]], NDArray[Any]]
"""Output of one sample -> the part that counts for the SQNR."""


def largest(outputs: NDArray[Any]) -> NDArray[np.intp]:
    """The index of the largest output of each sample."""
    actual: NDArray[np.intp] = outputs.reshape(len(outputs), -1).argmax(axis=1)
    return actual


def whole(output: NDArray[Any]) -> NDArray[Any]:
    """The whole output."""
    return output


@dataclass(frozen=True)
class Network:
    """One benchmark network.  ``source(batch)`` makes its ONNX file; shapes have no batch axis."""

    name: str
    input_name: str
    image_shape: tuple[int, ...]
    source: Callable[[int], Path]
    images: Callable[[int, int], Array]
    labeled: Callable[[], tuple[Array, NDArray[Any]]] | None = None
    answers: Answers = largest
    signal: Signal = whole

    def path(self, batch: int = 1) -> Path:
        """The ONNX file, built where it is missing."""
        return self.source(batch)

    def input_shape(self, batch: int = 1) -> tuple[int, ...]:
        """Shape of the only input."""
        return (batch, *self.image_shape)

    def samples(self, count: int, seed: int = 0) -> Array:
        """``count`` realistic inputs [count, *image_shape], drawn by ``seed``."""
        return self.images(count, seed)

    def feeds(self, count: int, seed: int = 0, batch: int = 1) -> list[Feeds]:
        """``count`` feeds of ``batch`` samples each."""
        arrays = self.samples(count * batch, seed).reshape(count, *self.input_shape(batch))
        return [{self.input_name: array} for array in arrays]

    def calibration(self, samples: int, batch: int) -> list[Feeds]:
        """At least ``samples`` samples in feeds of ``batch``: a larger batch gets fewer feeds."""
        return self.feeds(-(-samples // batch), batch=batch)

    def macs(self, batch: int = 1) -> int:
        """Multiply-accumulates of one run."""
        graph = qg.import_model(self.path(batch), {self.input_name: self.input_shape(batch)})
        return sum(int(count_macs(node)) for node in graph.compute_nodes())


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs that are not initializers, which old files list as inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def with_input_shape(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model with its only input fixed at ``shape``; intermediate shapes are inferred anew."""
    (value,) = graph_inputs(model.graph)
    if [dim.dim_value for dim in value.type.tensor_type.shape.dim] == list(shape):
        return model
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    (value,) = graph_inputs(fixed.graph)
    for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size
    for output in fixed.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = shape[0]
    del fixed.graph.value_info[:]
    return fixed
