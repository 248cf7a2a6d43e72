"""Models whose dimensions are made free, and values for other sizes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from quantglow.support.arrays import Array

RESIZES: tuple[Callable[[int], int], ...] = (
    lambda size: size,
    lambda size: size + 1,
    lambda size: size + 5,
    lambda size: 2 * size + 1,
)
"""Other sizes of dimensions."""


def freed(model: onnx.ModelProto, are_shared: bool) -> onnx.ModelProto:
    """The model with free dimensions, which share a symbol where they are equal, or each has its
    own.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"d{dim.dim_value}" if are_shared else f"{value.name}_{axis}"
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def resized(array: Array, resize: Callable[[int], int]) -> Array:
    """The values again and again in another shape; axes of 1 stay."""
    return np.resize(array, tuple(size if size == 1 else resize(size) for size in array.shape))


def bytes_of(arrays: Sequence[Array]) -> list[tuple[tuple[int, ...], bytes]]:
    """Shapes and contents."""
    return [(array.shape, array.tobytes()) for array in arrays]
