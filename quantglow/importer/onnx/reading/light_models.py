"""Models without the data of large initializers, their bytes with it, and their hash.

A light model has the names, types and shapes of all tensors; ``Weights`` has the arrays, which lie
in pages of a file.

It is written as the bytes of the whole model, and read from them, without a copy of the large
initializers: a field of a message may come in pieces (``support.protobuf``), so the initializers of
a graph can be written one behind the other, each in a piece of the graph of its own.

``source_hash`` is a hash of operators, names and weights.  It does not see doc strings, the
producer, node names, tensor encodings (raw, typed, external) or the declared shapes, so that a
profile stays valid for the same network at another batch size.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from quantglow.importer.onnx.nodes.values import tensor_array
from quantglow.importer.onnx.reading.proto import decode, opset_versions
from quantglow.support import pages
from quantglow.support.arrays import Array
from quantglow.support.pages import (
    LEAST_NBYTES,
    Content,
    Data,
    JoinedBytes,
    is_worth_paging,
    page,
    release_pages,
)
from quantglow.support.protobuf import fields, head

Weights = Mapping[str, Array]
"""Arrays of initializers of the main graph, by name."""

GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


def light(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """The model without the data of its large initializers, and these.

    The model as it is, and nothing, where that is not worth it or there is no room for a file.
    """
    large = large_initializers(proto)
    sizes = {name: tensor_nbytes(tensor) for name, tensor in large.items()}
    if not pages.is_worth_paging(sizes.values()):
        return proto, {}
    arrays = pages.page(array for array in map(_raw_array, large.values()))
    if arrays is None:
        return proto, {}
    weights = dict(zip(large, arrays, strict=True))
    return _without_data(proto, weights), weights


def large_initializers(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """The initializers of the main graph with as many bytes as their types and shapes say."""
    counts = Counter(tensor.name for tensor in proto.graph.initializer)
    return {
        tensor.name: tensor
        for tensor in proto.graph.initializer
        if counts[tensor.name] == 1
        and tensor_nbytes(tensor) >= pages.LEAST_NBYTES
        and len(tensor.raw_data) == tensor_nbytes(tensor)
    }


def tensor_nbytes(tensor: onnx.TensorProto) -> int:
    """Bytes of the elements of a tensor; 0 for types that NumPy has not."""
    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError):
        return 0
    return prod(tensor.dims) * kind.itemsize if kind.kind in "fiu" else 0


def _raw_array(tensor: onnx.TensorProto) -> Array:
    """The elements of a tensor that has them as bytes."""
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return np.frombuffer(tensor.raw_data, kind.newbyteorder("<")).reshape(tuple(tensor.dims))


def _without_data(proto: onnx.ModelProto, names: Container[str]) -> onnx.ModelProto:
    """A copy without the data of some initializers."""
    model = onnx.ModelProto()
    copy_fields(proto, model, {"graph"})
    copy_fields(proto.graph, model.graph, {"initializer"})
    for tensor in proto.graph.initializer:
        copy = model.graph.initializer.add()
        if tensor.name in names:
            copy.name, copy.data_type = tensor.name, tensor.data_type
            copy.dims.extend(tensor.dims)
        else:
            copy.CopyFrom(tensor)
    return model


def with_data(tensor: onnx.TensorProto, weights: Weights) -> onnx.TensorProto:
    """An initializer of a light model with its data."""
    if tensor.name not in weights:
        return tensor
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.raw_data = weights[tensor.name].tobytes()
    return copy


def whole(proto: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """A copy of a light model with all data."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()
    return model


def hollow(proto: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """A light model as the checker takes it: initializers without data have no elements."""
    if not weights:
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("dims")
            tensor.dims.append(0)
    return model


def copy_fields(source: Any, target: Any, but: Container[str]) -> None:
    """Copy all fields of a message that are set, but for some."""
    for entry, value in source.ListFields():
        if entry.name in but:
            continue
        if hasattr(value, "extend"):
            getattr(target, entry.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, entry.name).CopyFrom(value)
        else:
            setattr(target, entry.name, value)


def serialize(proto: onnx.ModelProto, weights: Weights) -> Content:
    """The bytes of a light model with its weights; these stay where they are."""
    if not weights:
        return bytes(proto.SerializeToString(deterministic=True))
    header = onnx.ModelProto()
    header.CopyFrom(proto)
    header.graph.ClearField("initializer")
    parts: list[Data] = [header.SerializeToString(deterministic=True)]
    for tensor in proto.graph.initializer:
        parts += _wrap_tensor(tensor, weights.get(tensor.name))
    return JoinedBytes(tuple(parts))


def _wrap_tensor(tensor: onnx.TensorProto, array: Array | None) -> Iterator[Data]:
    """A graph with one initializer, which has the elements of an array, as a field of a model."""
    inner: list[Data] = [tensor.SerializeToString(deterministic=True)]
    if array is not None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        inner += [head(RAW_DATA, len(data)), data]
    nbytes = sum(map(len, inner))
    outer = head(INITIALIZER, nbytes)
    yield head(GRAPH, len(outer) + nbytes) + outer
    yield from inner


def light_decoded(
    data: Data, origin: str, but: Container[str] = ()
) -> tuple[onnx.ModelProto, Weights]:
    """The light model in these bytes, and its weights in pages: large initializers whose data has
    the bytes that their types and shapes say.

    ``but``: names of initializers that stay as they are.  Raises ``ModelError``.
    """
    initializers = Initializers(but)
    try:
        proto = onnx.ModelProto.FromString(b"".join(initializers.without(memoryview(data))))
        weights = initializers.pages(proto)
    except (ValueError, DecodeError):
        weights = None
    return (decode(bytes(data), origin), {}) if weights is None else (proto, weights)


@dataclass
class Initializers:
    """The data of large initializers, by the order in which they come."""

    but: Container[str]
    data: list[tuple[str, memoryview]] = field(default_factory=list)

    def pages(self, proto: onnx.ModelProto) -> Weights | None:
        """The arrays, in pages; None if they are not worth it, or one is not as ``proto`` says."""
        counts = Counter(tensor.name for tensor in proto.graph.initializer)
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        whole = all(
            counts[name] == 1 and tensor_nbytes(tensors[name]) == len(data)
            for name, data in self.data
        )
        if not whole or not is_worth_paging(len(data) for _, data in self.data):
            return None
        arrays = page(_as_array(tensors[name], data) for name, data in self.data)
        return None if arrays is None else dict(zip((n for n, _ in self.data), arrays, strict=True))

    def without(self, model: memoryview) -> Iterator[Data]:
        """The bytes of a model without the data.  Raises ``ValueError`` and ``DecodeError``."""
        for number, whole, payload in fields(model):
            if number != GRAPH or len(payload) < LEAST_NBYTES:
                yield whole
                continue
            inner = b"".join(self._graph_without(payload))
            yield head(GRAPH, len(inner)) + inner

    def _graph_without(self, graph: memoryview) -> Iterator[Data]:
        for number, whole, payload in fields(graph):
            if number != INITIALIZER or len(payload) < LEAST_NBYTES:
                yield whole
                continue
            inner = self._tensor_without(payload)
            yield head(INITIALIZER, len(inner)) + inner

    def _tensor_without(self, tensor: memoryview) -> Data:
        """The bytes of an initializer without its data, where that is large and comes once."""
        entries = list(fields(tensor))
        data = [payload for number, _, payload in entries if number == RAW_DATA]
        header = b"".join(whole for number, whole, _ in entries if number != RAW_DATA)
        name = onnx.TensorProto.FromString(header).name
        if len(data) != 1 or len(data[0]) < LEAST_NBYTES or name in self.but:
            return tensor
        self.data.append((name, data[0]))
        return header


def _as_array(tensor: onnx.TensorProto, data: memoryview) -> Array:
    """The elements of an initializer in its data."""
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return np.frombuffer(data, kind.newbyteorder("<")).reshape(tuple(tensor.dims))


def source_hash(model: onnx.ModelProto, weights: Weights) -> str:
    """sha256 of the content of a light model and its weights, as hexadecimal text."""
    digest = Digest()
    digest.add("quantglow-model-1", sorted(opset_versions(model).items()))
    _add_graph(digest, model.graph, weights)
    return digest.sha.hexdigest()


class Digest:
    """sha256 of a sequence of values, each with its length: no two sequences look the same."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def add(self, *parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes | memoryview) else repr(part).encode()
            self.sha.update(f"{len(data)}:".encode())
            self.sha.update(data)


def _add_graph(digest: Digest, graph: onnx.GraphProto, weights: Weights) -> None:
    digest.add(len(graph.input), len(graph.output), len(graph.initializer), len(graph.node))
    digest.add([(i.name, i.type.tensor_type.elem_type) for i in graph.input])
    digest.add([output.name for output in graph.output])
    for tensor in sorted(graph.initializer, key=lambda t: t.name):
        digest.add(tensor.name)
        _add_tensor(digest, tensor, weights.get(tensor.name))
    for node in graph.node:
        _add_node(digest, node)


def _add_node(digest: Digest, node: onnx.NodeProto) -> None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    digest.add(domain, node.op_type, list(node.input), list(node.output), len(node.attribute))
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        digest.add(attribute.name, attribute.type)
        _add_attribute(digest, attribute)


def _add_attribute(digest: Digest, attribute: onnx.AttributeProto) -> None:
    value = onnx.helper.get_attribute_value(attribute)
    values = value if isinstance(value, list) else [value]
    for item in values if len(values) else ():
        if isinstance(item, onnx.TensorProto):
            _add_tensor(digest, item)
        elif isinstance(item, onnx.GraphProto):
            _add_graph(digest, item, {})
        elif isinstance(item, onnx.SparseTensorProto):
            digest.add(list(item.dims))
            _add_tensor(digest, item.values)
            _add_tensor(digest, item.indices)
        elif isinstance(item, onnx.TypeProto):
            digest.add(item.SerializeToString(deterministic=True))
        else:
            digest.add(item)


def _add_tensor(digest: Digest, tensor: onnx.TensorProto, weights: Array | None = None) -> None:
    digest.add(tensor.data_type, list(tensor.dims))
    array = tensor_array(tensor) if weights is None else weights
    if array.dtype == np.object_:
        digest.add(array.reshape(-1).tolist())
    else:
        digest.add(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if weights is not None:
        release_pages()
