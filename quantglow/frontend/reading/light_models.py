"""Models without the data of their large initializers, which lie in pages of a file.

A light model has the names, types and shapes of all tensors; ``Weights`` has the arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx

from quantglow import pages
from quantglow.foreign_types import Array
from quantglow.frontend.reading.proto import all_tensors

Weights = Mapping[str, Array]
"""Arrays of initializers of the main graph, by name."""


def light(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """The model without the data of its large initializers, and these.

    The model as it is, and nothing, where that is not worth it or there is no room for a file.
    """
    found = large_initializers(proto)
    sizes = {name: nbytes_of(tensor) for name, tensor in found.items()}
    if not pages.is_worth_paging(sizes.values()):
        return proto, {}
    arrays = pages.paged(array for array in map(raw_array, found.values()))
    if arrays is None:
        return proto, {}
    weights = dict(zip(found, arrays, strict=True))
    return without_data(proto, weights), weights


def large_initializers(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """The initializers of the main graph with as many bytes as their types and shapes say."""
    counts = Counter(tensor.name for tensor in proto.graph.initializer)
    return {
        tensor.name: tensor
        for tensor in proto.graph.initializer
        if counts[tensor.name] == 1
        and nbytes_of(tensor) >= pages.LEAST_NBYTES
        and len(tensor.raw_data) == nbytes_of(tensor)
    }


def nbytes_of(tensor: onnx.TensorProto) -> int:
    """Bytes of the elements of a tensor; 0 for types that NumPy has not."""
    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError):
        return 0
    return prod(tensor.dims) * kind.itemsize if kind.kind in "fiu" else 0


def weights_nbytes(proto: onnx.ModelProto) -> int:
    """Bytes of the elements of all tensors of a model."""
    return sum(map(nbytes_of, all_tensors(proto)))


def raw_array(tensor: onnx.TensorProto) -> Array:
    """The elements of a tensor that has them as bytes."""
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return np.frombuffer(tensor.raw_data, kind.newbyteorder("<")).reshape(tuple(tensor.dims))


def without_data(proto: onnx.ModelProto, names: Container[str]) -> onnx.ModelProto:
    """A copy without the data of some initializers."""
    made = onnx.ModelProto()
    copy_fields(proto, made, {"graph"})
    copy_fields(proto.graph, made.graph, {"initializer"})
    for tensor in proto.graph.initializer:
        copy = made.graph.initializer.add()
        if tensor.name in names:
            copy.name, copy.data_type = tensor.name, tensor.data_type
            copy.dims.extend(tensor.dims)
        else:
            copy.CopyFrom(tensor)
    return made


def with_data(tensor: onnx.TensorProto, weights: Weights) -> onnx.TensorProto:
    """An initializer of a light model with its data."""
    if tensor.name not in weights:
        return tensor
    made = onnx.TensorProto()
    made.CopyFrom(tensor)
    made.raw_data = weights[tensor.name].tobytes()
    return made


def whole(proto: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """A copy of a light model with all data."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()
    return made


def hollow(proto: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """A light model as the checker takes it: initializers without data have no elements."""
    if not weights:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("dims")
            tensor.dims.append(0)
    return made


def copy_fields(source: Any, target: Any, but: Container[str]) -> None:
    """Copy all fields of a message that are set, but for some."""
    for field, value in source.ListFields():
        if field.name in but:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
