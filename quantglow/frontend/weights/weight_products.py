"""Products with known weights in a model, and tables whose rows it looks up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.values import as_float32, is_float_type
from quantglow.frontend.source import Source

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


LEAST_TABLE = 2**16
"""Elements of the smallest table whose rows are worth few bits."""


@dataclass(frozen=True)
class WeightTable:
    """A Gather of rows of a known matrix, an embedding: ``table`` [V, K]."""

    result: str
    indices: str
    table: Array


def weight_tables(source: Source) -> Iterator[WeightTable]:
    """The large tables of a model, in order."""
    known, nodes = source.decoded
    values = {value.name: value.array for value in known}
    for node in nodes:
        if node.op_type != "Gather" or node.domain or any(a.i for a in node.attribute):
            continue  # the only attribute is the axis
        name, indices = node.input
        table = values.get(name)
        if table is None or indices in values:
            continue
        if table.size >= LEAST_TABLE and is_matrix(table):
            yield WeightTable(node.output[0], indices, table)


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
