"""Sparse tensors become dense ones: sparse initializers, and Constants with ``sparse_value``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from quantglow.errors import ModelError
from quantglow.frontend.nodes.values import array_of
from quantglow.frontend.reading.proto import MAX_NBYTES, every_node

SPARSE = "sparse_value"


def with_dense_tensors(proto: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """The model, or a copy of it without sparse tensors.

    Raises ``ModelError`` for those that are malformed, or too large when dense.
    """
    if not any(graph.sparse_initializer for graph in every_graph(proto)) and not any(
        attribute.name == SPARSE for node in every_node(proto) for attribute in node.attribute
    ):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    room = MAX_NBYTES
    for graph in every_graph(copy):
        for sparse in graph.sparse_initializer:
            dense = dense_tensor(sparse, origin, room)
            room -= len(dense.raw_data)
            graph.initializer.append(dense)
        graph.ClearField("sparse_initializer")
    for node in every_node(copy):
        for attribute in node.attribute:
            if attribute.name == SPARSE and node.op_type == "Constant" and not node.domain:
                dense = dense_tensor(attribute.sparse_tensor, origin, room)
                room -= len(dense.raw_data)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
    return copy


def every_graph(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and all subgraphs."""
    yield proto.graph
    for node in every_node(proto):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def dense_tensor(sparse: onnx.SparseTensorProto, origin: str, room: int) -> onnx.TensorProto:
    """A tensor of ``room`` bytes at most.  Raises ``ModelError``."""
    name, dims = sparse.values.name, tuple(sparse.dims)
    values, places = array_of(sparse.values).reshape(-1), array_of(sparse.indices)
    if min(dims, default=1) < 0 or math.prod(dims) * values.itemsize > room:
        raise _malformed(origin, name, f"its shape {dims} is negative or too large")
    if places.dtype != np.int64 or places.shape not in ((len(values),), (len(values), len(dims))):
        raise _malformed(origin, name, "its indices do not fit its values")
    columns = places.T if places.ndim == 2 else places[None]
    limits = dims if places.ndim == 2 else (math.prod(dims),)
    if any((c < 0).any() or (c >= size).any() for c, size in zip(columns, limits, strict=True)):
        raise _malformed(origin, name, f"its indices leave the shape {dims}")
    dense = np.zeros(dims if places.ndim == 2 else math.prod(dims), values.dtype)
    dense[tuple(columns)] = values
    return numpy_helper.from_array(dense.reshape(dims), name)


def _malformed(origin: str, name: str, problem: str) -> ModelError:
    return ModelError(
        f"{origin}: the sparse tensor {name!r} is malformed: {problem}. Remedy: store it as a "
        "dense tensor."
    )
