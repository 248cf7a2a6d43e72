"""Weights in few bits: products with known weights, tables, and a model in which they are packed.

Products become onnxruntime's MatMulNBits, look-ups its GatherBlockQuantized, which are imported to
packed kernels: so the model that is compiled at all shapes, saved and exported has packed weights
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import onnx

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.values import as_float32, is_float_type
from quantglow.importer.onnx.reading.light_models import copy_fields, with_data
from quantglow.importer.onnx.reading.proto import all_nodes, iterate_graphs
from quantglow.importer.onnx.source import Source
from quantglow.ir.ops.groupwise import PackedWeights, pack_codes
from quantglow.support.arrays import Array

LAYOUTS = ("Identity", "Transpose")
"""Operators that may stand between an initializer and the product that reads it."""

LEAST_TABLE = 2**16
"""Elements of the smallest table whose rows are worth few bits."""

ACCURACY_LEVELS = {"float": 0, "dynamic": 4}
"""MatMulNBits' ``accuracy_level`` by the kind of activations."""

Written = tuple[onnx.NodeProto, list[onnx.TensorProto]]
"""A node and its initializers."""


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


@dataclass(frozen=True)
class WeightTable:
    """A Gather of rows of a known matrix, an embedding: ``table`` [V, K]."""

    result: str
    indices: str
    table: Array


def weight_tables(source: Source) -> Iterator[WeightTable]:
    """The large tables of a model, in order."""
    constants, nodes = source.decoded
    values = {value.name: value.array for value in constants}
    for node in nodes:
        if node.op_type != "Gather" or node.domain or any(a.i for a in node.attribute):
            continue  # the only attribute is the axis
        name, indices = node.input
        table = values.get(name)
        if table is None or indices in values:
            continue
        if table.size >= LEAST_TABLE and _is_matrix(table):
            yield WeightTable(node.output[0], indices, table)


def weight_products(source: Source) -> Iterator[WeightProduct]:
    """The products of a model, in order."""
    constants, nodes = source.decoded
    values = {value.name: value.array for value in constants}
    for node in nodes:
        if node.domain:
            continue
        if node.op_type in LAYOUTS and node.input[0] in values:
            values[node.output[0]] = _move(node, values[node.input[0]])
        elif node.op_type == "MatMul":
            yield from matmul(node, values)
        elif node.op_type == "Gemm":
            yield from _gemm(node, values)


def _move(node: onnx.NodeProto, array: Array) -> Array:
    """The result of one of ``LAYOUTS``."""
    if node.op_type == "Identity":
        return array
    perms = [tuple(a.ints) for a in node.attribute if a.name == "perm"]
    return array.transpose(perms[0] if perms else None)


def matmul(node: onnx.NodeProto, values: Mapping[str, Array]) -> Iterator[WeightProduct]:
    x, name = node.input
    if name in values and x not in values and _is_matrix(values[name]):
        yield WeightProduct(node.output[0], "MatMul", x, values[name])


def _gemm(node: onnx.NodeProto, values: Mapping[str, Array]) -> Iterator[WeightProduct]:
    """``alpha * A @ B' + beta * C`` with a row C."""
    x, name, *addend = node.input
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if name not in values or x in values or not _is_matrix(values[name]):
        return
    if attributes.get("transA", 0):
        return
    w = values[name].T if attributes.get("transB", 0) else values[name]
    if (alpha := attributes.get("alpha", 1.0)) != 1:
        w = w * w.dtype.type(alpha)
    if not addend or not addend[0]:
        yield WeightProduct(node.output[0], "Gemm", x, w)
        return
    c, beta = values.get(addend[0]), attributes.get("beta", 1.0)
    if c is not None and (c.size == 1 or c.shape[-1] == c.size == w.shape[1]):
        bias = np.broadcast_to(c.reshape(-1), w.shape[1:]) * c.dtype.type(beta)
        yield WeightProduct(node.output[0], "Gemm", x, w, bias)


def _is_matrix(array: Array) -> bool:
    """Whether these are weights that may be quantized: a matrix of finite floats."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.ndim == 2 and is_float_type(kind) and bool(np.isfinite(as_float32(array)).all())


Weights = WeightProduct | WeightTable


def with_packed_weights(
    source: Source, packed: Iterable[tuple[Weights, PackedWeights]], activations: str
) -> Source:
    """The model with these products and tables in few bits."""
    level = ACCURACY_LEVELS[activations]
    replacements = {
        weights.result: _n_bits(weights, encoded, level)
        if isinstance(weights, WeightProduct)
        else _block_rows(weights, encoded)
        for weights, encoded in packed
    }
    graph = source.proto.graph
    pairs = [
        replacements.get(n.output[0], (n, [])) if not n.domain else (n, []) for n in graph.node
    ]
    nodes = [node for node, _ in pairs]
    tensors = [*graph.initializer, *chain.from_iterable(stored for _, stored in pairs)]
    return Source.of(_read_only(source, nodes, tensors))


def _n_bits(product: WeightProduct, packed: PackedWeights, level: int) -> Written:
    """MatMulNBits and its initializers."""
    depth, columns = product.weights.shape
    arrays = _packed_arrays(packed, product.weights.dtype)
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
    return node, _named_tensors(arrays, names)


def _block_rows(table: WeightTable, packed: PackedWeights) -> Written:
    """GatherBlockQuantized and its initializers."""
    arrays = _packed_arrays(packed, table.table.dtype)
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
    return node, _named_tensors(arrays, names)


def _packed_arrays(packed: PackedWeights, kind: np.dtype[Any]) -> dict[str, Array]:
    """Codes, scales in the element type of the model, zero points packed as codes are."""
    arrays = {"codes": packed.codes, "scales": packed.scales.astype(kind)}
    if packed.zero_points is not None:
        missing = -packed.zero_points.shape[1] % (8 // packed.bits)
        points = np.pad(packed.zero_points, ((0, 0), (0, missing)))
        arrays["zero_points"] = pack_codes(points, packed.bits)
    return arrays


def _named_tensors(arrays: Mapping[str, Array], names: Mapping[str, str]) -> list[onnx.TensorProto]:
    return [onnx.numpy_helper.from_array(arrays[role], names[role]) for role in arrays]


def _read_only(
    source: Source, nodes: Sequence[onnx.NodeProto], tensors: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """The model with those of other nodes and initializers that an output needs.

    No other tensor is copied: a float model may be as large as memory.
    """
    proto = source.proto
    needed = {output.name for graph in iterate_graphs(proto) for output in graph.output}
    live = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            live.append(node)
            needed.update(name for inner in all_nodes([node]) for name in inner.input)
    unread = {tensor.name for tensor in tensors} - needed
    model = onnx.ModelProto()
    copy_fields(proto, model, {"graph"})
    copy_fields(proto.graph, model.graph, {"node", "initializer", "input"})
    model.graph.node.extend(reversed(live))
    read = (tensor for tensor in tensors if tensor.name in needed)
    model.graph.initializer.extend(with_data(tensor, source.weights) for tensor in read)
    # Old models list weights as inputs, too.
    model.graph.input.extend(value for value in proto.graph.input if value.name not in unread)
    if MICROSOFT not in {entry.domain for entry in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return model
