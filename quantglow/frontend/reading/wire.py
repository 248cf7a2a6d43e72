"""Light models as the bytes of whole ones, and back, without a copy of their large initializers.

A message of protobuf is a sequence of fields, each a number with its kind and a payload; a field of
one message that comes in pieces is the sum of them.  So the initializers of a graph can be written
one behind the other, each in a piece of the graph of its own.
(https://protobuf.dev/programming-guides/encoding)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from quantglow.foreign_types import Array
from quantglow.frontend.reading.light_models import Weights, nbytes_of
from quantglow.frontend.reading.proto import decoded
from quantglow.pages import LEAST_NBYTES, Content, Data, Parts, is_worth_paging, paged

GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields."""
MOST_VARINT_NBYTES = 10


def serialized(proto: onnx.ModelProto, weights: Weights) -> Content:
    """The bytes of a light model with its weights; these stay where they are."""
    if not weights:
        return bytes(proto.SerializeToString(deterministic=True))
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    rest.graph.ClearField("initializer")
    parts: list[Data] = [rest.SerializeToString(deterministic=True)]
    for tensor in proto.graph.initializer:
        parts += graph_of(tensor, weights.get(tensor.name))
    return Parts(tuple(parts))


def graph_of(tensor: onnx.TensorProto, array: Array | None) -> Iterator[Data]:
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
    found = Initializers(but)
    try:
        proto = onnx.ModelProto.FromString(b"".join(found.without(memoryview(data))))
        made = found.pages(proto)
    except (ValueError, DecodeError):
        made = None
    return (decoded(bytes(data), origin), {}) if made is None else (proto, made)


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
            counts[name] == 1 and nbytes_of(tensors[name]) == len(data) for name, data in self.data
        )
        if not whole or not is_worth_paging(len(data) for _, data in self.data):
            return None
        made = paged(as_array(tensors[name], data) for name, data in self.data)
        return None if made is None else dict(zip((n for n, _ in self.data), made, strict=True))

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
        found = list(fields(tensor))
        data = [payload for number, _, payload in found if number == RAW_DATA]
        rest = b"".join(whole for number, whole, _ in found if number != RAW_DATA)
        name = onnx.TensorProto.FromString(rest).name
        if len(data) != 1 or len(data[0]) < LEAST_NBYTES or name in self.but:
            return tensor
        self.data.append((name, data[0]))
        return rest


def as_array(tensor: onnx.TensorProto, data: memoryview) -> Array:
    """The elements of an initializer in its data."""
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return np.frombuffer(data, kind.newbyteorder("<")).reshape(tuple(tensor.dims))


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """The number of each field of a message, all its bytes, and its payload.

    Raises ``ValueError`` for what is none, and for groups, which ONNX has not.
    """
    at = 0
    while at < len(message):
        start = at
        key, at = varint(message, at)
        kind = key & 7
        nbytes = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            nbytes, at = varint(message, at)
        elif kind == VARINT:
            nbytes = varint(message, at)[1] - at
        if nbytes is None or at + nbytes > len(message):
            raise ValueError(f"no field at byte {start} of {len(message)}")
        yield key >> 3, message[start : at + nbytes], message[at : at + nbytes]
        at += nbytes


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends.  Raises ``ValueError``."""
    value = 0
    for place, byte in enumerate(message[at : at + MOST_VARINT_NBYTES]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"no number at byte {at} of {len(message)}")


def head(number: int, nbytes: int) -> bytes:
    """The beginning of a field of so many bytes."""
    return as_varint(number << 3 | BYTES) + as_varint(nbytes)


def as_varint(value: int) -> bytes:
    """The bytes of a number, seven bits in each, the lowest first."""
    rest, found = value, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])
