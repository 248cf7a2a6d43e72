"""A model with weights in few bits.

Products become onnxruntime's MatMulNBits, look-ups its GatherBlockQuantized, which are imported to
packed kernels: so the model that is compiled at all shapes, saved and exported has packed weights
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import onnx

from quantglow.foreign_types import Array
from quantglow.frontend.reading.light_models import copy_fields, with_data
from quantglow.frontend.reading.proto import all_nodes, graphs_of
from quantglow.frontend.source import Source
from quantglow.frontend.weights.weight_products import WeightProduct, WeightTable
from quantglow.ops.weight_groups import PackedWeights, packed_codes

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
    graph = source.proto.graph
    pairs = [made.get(n.output[0], (n, [])) if not n.domain else (n, []) for n in graph.node]
    nodes = [node for node, _ in pairs]
    tensors = [*graph.initializer, *chain.from_iterable(own for _, own in pairs)]
    return Source.of(read_only(source, nodes, tensors))


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


def read_only(
    source: Source, nodes: Sequence[onnx.NodeProto], tensors: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """The model with those of other nodes and initializers that an output needs.

    No other tensor is copied: a float model may be as large as memory.
    """
    proto = source.proto
    needed = {output.name for graph in graphs_of(proto) for output in graph.output}
    live = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            live.append(node)
            needed.update(name for inner in all_nodes([node]) for name in inner.input)
    unread = {tensor.name for tensor in tensors} - needed
    made = onnx.ModelProto()
    copy_fields(proto, made, {"graph"})
    copy_fields(proto.graph, made.graph, {"node", "initializer", "input"})
    made.graph.node.extend(reversed(live))
    read = (tensor for tensor in tensors if tensor.name in needed)
    made.graph.initializer.extend(with_data(tensor, source.weights) for tensor in read)
    # Old models list weights as inputs, too.
    made.graph.input.extend(value for value in proto.graph.input if value.name not in unread)
    if MICROSOFT not in {entry.domain for entry in made.opset_import}:
        made.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return made
