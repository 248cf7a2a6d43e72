"""A model with weights in few bits.

Products become onnxruntime's MatMulNBits, look-ups its GatherBlockQuantized, which are imported to
packed kernels: so the model that is compiled at all shapes, saved and exported has packed weights
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from quantglow.frontend.proto import all_nodes
from quantglow.frontend.source import Source
from quantglow.frontend.weight_products import WeightProduct, WeightTable
from quantglow.ops.weight_groups import PackedWeights, packed_codes
from quantglow.types import Array

MICROSOFT = "com.microsoft"
ACCURACY_LEVELS = {"float": 0, "dynamic": 4}
"""MatMulNBits' ``accuracy_level`` by the kind of activations."""

Weights = WeightProduct | WeightTable
Written = tuple[onnx.NodeProto, list[onnx.TensorProto]]
"""A node and its initializers."""


def with_packed_weights(
    source: Source, packed: Iterable[tuple[Weights, PackedWeights]], activations: str
) -> Source:
    """The model with these products and tables in few bits."""
    level = ACCURACY_LEVELS[activations]
    made = {
        weights.result: n_bits(weights, own, level)
        if isinstance(weights, WeightProduct)
        else block_rows(weights, own)
        for weights, own in packed
    }
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    nodes, tensors = [], list[onnx.TensorProto]()
    for node in proto.graph.node:
        if not node.domain and node.output[0] in made:
            node, own = made[node.output[0]]
            tensors += own
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(tensors)
    drop_unread(proto)
    if MICROSOFT not in {entry.domain for entry in proto.opset_import}:
        proto.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return Source(proto)


def n_bits(product: WeightProduct, packed: PackedWeights, level: int) -> Written:
    """MatMulNBits and its initializers."""
    depth, columns = product.weights.shape
    arrays = arrays_of(packed, product.weights.dtype)
    if product.bias is not None:
        arrays["bias"] = product.bias.astype(product.weights.dtype)
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
    return node, tensors_of(arrays, names)


def block_rows(table: WeightTable, packed: PackedWeights) -> Written:
    """GatherBlockQuantized and its initializers."""
    arrays = arrays_of(packed, table.table.dtype)
    arrays["codes"] = arrays["codes"].reshape(len(table.table), -1)
    names = {role: f"{table.result}:{role}" for role in arrays}
    operands = [names[r] for r in ("scales", "zero_points") if r in names]
    node = onnx.helper.make_node(
        "GatherBlockQuantized",
        [names["codes"], table.indices, *operands],
        [table.result],
        domain=MICROSOFT,
        bits=packed.bits,
        block_size=packed.codes.shape[2] * 8 // packed.bits,
        gather_axis=0,
        quantize_axis=1,
    )
    return node, tensors_of(arrays, names)


def arrays_of(packed: PackedWeights, kind: np.dtype[Any]) -> dict[str, Array]:
    """Codes, scales in the element type of the model, zero points packed as codes are."""
    found = {"codes": packed.codes, "scales": packed.scales.astype(kind)}
    if packed.zero_points is not None:
        missing = -packed.zero_points.shape[1] % (8 // packed.bits)
        points = np.pad(packed.zero_points, ((0, 0), (0, missing)))
        found["zero_points"] = packed_codes(points, packed.bits)
    return found


def tensors_of(arrays: Mapping[str, Array], names: Mapping[str, str]) -> list[onnx.TensorProto]:
    return [onnx.numpy_helper.from_array(arrays[role], names[role]) for role in arrays]


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
    names = {tensor.name for tensor in unread}
    for value in [value for value in graph.input if value.name in names]:
        graph.input.remove(value)  # old models list weights as inputs, too
