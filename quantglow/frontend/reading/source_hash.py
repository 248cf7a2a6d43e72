"""A hash of what a model computes: operators, names and weights.

It does not see doc strings, the producer, node names, tensor encodings (raw, typed, external) or
the declared shapes, so that a profile stays valid for the same network at another batch size.
"""

from __future__ import annotations

import hashlib

import numpy as np
import onnx

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.values import array_of
from quantglow.frontend.reading.light_models import Weights
from quantglow.frontend.reading.proto import opsets_of
from quantglow.pages import release_pages


def source_hash(model: onnx.ModelProto, weights: Weights) -> str:
    """sha256 of the content of a light model and its weights, as hexadecimal text."""
    digest = Digest()
    digest.add("quantglow-model-1", sorted(opsets_of(model).items()))
    add_graph(digest, model.graph, weights)
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


def add_graph(digest: Digest, graph: onnx.GraphProto, weights: Weights) -> None:
    digest.add(len(graph.input), len(graph.output), len(graph.initializer), len(graph.node))
    digest.add([(i.name, i.type.tensor_type.elem_type) for i in graph.input])
    digest.add([output.name for output in graph.output])
    for tensor in sorted(graph.initializer, key=lambda t: t.name):
        digest.add(tensor.name)
        add_tensor(digest, tensor, weights.get(tensor.name))
    for node in graph.node:
        add_node(digest, node)


def add_node(digest: Digest, node: onnx.NodeProto) -> None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    digest.add(domain, node.op_type, list(node.input), list(node.output), len(node.attribute))
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        digest.add(attribute.name, attribute.type)
        add_attribute(digest, attribute)


def add_attribute(digest: Digest, attribute: onnx.AttributeProto) -> None:
    value = onnx.helper.get_attribute_value(attribute)
    values = value if isinstance(value, list) else [value]
    for item in values if len(values) else ():
        if isinstance(item, onnx.TensorProto):
            add_tensor(digest, item)
        elif isinstance(item, onnx.GraphProto):
            add_graph(digest, item, {})
        elif isinstance(item, onnx.SparseTensorProto):
            digest.add(list(item.dims))
            add_tensor(digest, item.values)
            add_tensor(digest, item.indices)
        elif isinstance(item, onnx.TypeProto):
            digest.add(item.SerializeToString(deterministic=True))
        else:
            digest.add(item)


def add_tensor(digest: Digest, tensor: onnx.TensorProto, given: Array | None = None) -> None:
    digest.add(tensor.data_type, list(tensor.dims))
    array = array_of(tensor) if given is None else given
    if array.dtype == np.object_:
        digest.add(array.reshape(-1).tolist())
    else:
        digest.add(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if given is not None:
        release_pages()
