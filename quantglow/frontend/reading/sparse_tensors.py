"""Sparse tensors become dense ones: sparse initializers, and Constants with ``sparse_value``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from quantglow.errors import ModelError
from quantglow.frontend.nodes.values import array_of
from quantglow.frontend.reading.proto import every_node

SPARSE = "sparse_value"
MOST_NBYTES = 2**28
"""Maximum number of bytes of all dense tensors: a small file may name huge ones."""


def with_dense_tensors(proto: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """The model, or a copy of it without sparse tensors.

    Raises ``ModelError`` for those that are malformed, or too large when dense.
    """
    in_nodes = any(is_sparse(node, each) for node in every_node(proto) for each in node.attribute)
    if not in_nodes and not any(graph.sparse_initializer for graph in every_graph(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    room = MOST_NBYTES
    for graph in every_graph(copy):
        for sparse in graph.sparse_initializer:
            dense = dense_tensor(sparse, origin, room)
            room -= len(dense.raw_data)
            graph.initializer.append(dense)
        graph.ClearField("sparse_initializer")
    for node in every_node(copy):
        for attribute in node.attribute:
            if is_sparse(node, attribute):
                dense = dense_tensor(attribute.sparse_tensor, origin, room)
                room -= len(dense.raw_data)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
    return copy


def is_sparse(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute is the value of a Constant, and not a name of a function's attribute."""
    own = attribute.name == SPARSE and attribute.HasField("sparse_tensor")
    return own and node.op_type == "Constant" and node.domain in ("", "ai.onnx")


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
    try:
        onnx.checker.check_sparse_tensor(sparse)
    except onnx.checker.ValidationError as error:
        raise _malformed(origin, name, " ".join(str(error).split())) from None
    values, places = array_of(sparse.values), array_of(sparse.indices)
    if values.dtype.kind not in "biuf" or places.dtype != np.int64:
        raise _malformed(origin, name, "its values are no numbers, or its indices no int64")
    if math.prod(max(size, 1) for size in dims) * values.itemsize > room:
        raise _malformed(origin, name, f"of shape {dims} it is too large when dense")
    dense = np.zeros(math.prod(dims), values.dtype)
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), dims)
    dense[flat] = values
    return numpy_helper.from_array(dense.reshape(dims), name)


def _malformed(origin: str, name: str, problem: str) -> ModelError:
    return ModelError(
        f"{origin}: the sparse tensor {name!r} is malformed: {problem}. Remedy: store it as a "
        "dense tensor."
    )
