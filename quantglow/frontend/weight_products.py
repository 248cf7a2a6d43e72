"""Products with known weights in a model, and the model with these weights in few bits.

``x @ w`` becomes onnxruntime's MatMulNBits, which is imported to packed kernels: so the model that
is compiled at all shapes, saved and exported has the packed weights only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.frontend.proto import all_nodes
from quantglow.frontend.source import Source
from quantglow.frontend.values import as_float32, is_float_type
from quantglow.ops.weight_groups import PackedWeights, packed_codes
from quantglow.types import Array

MICROSOFT = "com.microsoft"
ACCURACY_LEVELS = {"float": 0, "dynamic": 4}
"""MatMulNBits' ``accuracy_level`` by the kind of activations."""
LAYOUTS = ("Identity", "Transpose")
"""Operators that may stand between an initializer and the product that reads it."""


@dataclass(frozen=True)
class WeightProduct:
    """A MatMul or Gemm of the main graph with a known matrix.

    result, x  names of values
    weights    [K, N], in the element type of the model
    bias       [N], or None
    """

    result: str
    op_type: str
    x: str
    weights: Array
    bias: Array | None = None


def weight_products(source: Source) -> Iterator[WeightProduct]:
    """The products of a model, in order."""
    known, nodes = source.decoded
    values = {value.name: value.array for value in known}
    for node in nodes:
        if node.domain:
            continue
        if node.op_type in LAYOUTS and node.input[0] in values:
            values[node.output[0]] = moved(node, values[node.input[0]])
        elif node.op_type == "MatMul":
            yield from matmul(node, values)
        elif node.op_type == "Gemm":
            yield from gemm(node, values)


def moved(node: onnx.NodeProto, array: Array) -> Array:
    """The result of one of ``LAYOUTS``."""
    if node.op_type == "Identity":
        return array
    perms = [tuple(a.ints) for a in node.attribute if a.name == "perm"]
    return array.transpose(perms[0] if perms else None)


def matmul(node: onnx.NodeProto, values: Mapping[str, Array]) -> Iterator[WeightProduct]:
    x, name = node.input
    if name in values and x not in values and is_matrix(values[name]):
        yield WeightProduct(node.output[0], "MatMul", x, values[name])


def gemm(node: onnx.NodeProto, values: Mapping[str, Array]) -> Iterator[WeightProduct]:
    """``alpha * A @ B' + beta * C`` with a row C."""
    x, name, *rest = node.input
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if name not in values or x in values or not is_matrix(values[name]):
        return
    if attributes.get("transA", 0):
        return
    w = values[name].T if attributes.get("transB", 0) else values[name]
    if (alpha := attributes.get("alpha", 1.0)) != 1:
        w = w * w.dtype.type(alpha)
    if not rest or not rest[0]:
        yield WeightProduct(node.output[0], "Gemm", x, w)
        return
    c, beta = values.get(rest[0]), attributes.get("beta", 1.0)
    if c is not None and (c.size == 1 or c.shape[-1] == c.size == w.shape[1]):
        bias = np.broadcast_to(c.reshape(-1), w.shape[1:]) * c.dtype.type(beta)
        yield WeightProduct(node.output[0], "Gemm", x, w, bias)


def is_matrix(array: Array) -> bool:
    """Whether these are weights that may be quantized: a matrix of finite floats."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.ndim == 2 and is_float_type(kind) and bool(np.isfinite(as_float32(array)).all())


def with_packed_weights(
    source: Source,
    products: Mapping[str, tuple[WeightProduct, PackedWeights]],
    activations: str,
) -> Source:
    """The model with these products, by their results, as MatMulNBits."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    nodes, tensors = [], list[onnx.TensorProto]()
    for node in proto.graph.node:
        if not node.domain and node.output[0] in products:
            node, own = n_bits(*products[node.output[0]], ACCURACY_LEVELS[activations])
            tensors += own
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(tensors)
    drop_unread(proto)
    if MICROSOFT not in {entry.domain for entry in proto.opset_import}:
        proto.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return Source(proto)


def n_bits(
    product: WeightProduct, packed: PackedWeights, level: int
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """The node and its initializers; parameters have the element type of the model."""
    kind, (depth, columns) = product.weights.dtype, product.weights.shape
    arrays = {"codes": packed.codes, "scales": packed.scales.astype(kind)}
    if packed.zero_points is not None:
        missing = -packed.zero_points.shape[1] % (8 // packed.bits)
        points = np.pad(packed.zero_points, ((0, 0), (0, missing)))
        arrays["zero_points"] = packed_codes(points, packed.bits)
    if product.bias is not None:
        arrays["bias"] = product.bias.astype(kind)
    names = {role: f"{product.result}:{role}" for role in arrays}
    operands = [names.get(role, "") for role in ("codes", "scales", "zero_points", "", "bias")]
    while not operands[-1]:
        operands.pop()
    node = onnx.helper.make_node(
        "MatMulNBits",
        [product.x, *operands],
        [product.result],
        domain=MICROSOFT,
        K=depth,
        N=columns,
        bits=packed.bits,
        block_size=packed.codes.shape[2] * 8 // packed.bits,
        accuracy_level=level,
    )
    return node, [onnx.numpy_helper.from_array(arrays[role], names[role]) for role in arrays]


def drop_unread(proto: onnx.ModelProto) -> None:
    """Remove nodes and initializers that no output needs any more."""
    graph = proto.graph
    needed = {output.name for output in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(name for inner in all_nodes([node]) for name in inner.input)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    unread = [tensor for tensor in graph.initializer if tensor.name not in needed]
    for tensor in unread:
        graph.initializer.remove(tensor)
