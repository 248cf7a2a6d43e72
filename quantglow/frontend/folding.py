"""Nodes whose operands are all known are evaluated at import by ``onnx.reference``.

This is what makes shape arithmetic disappear.  ONNX's own shape inference bounds the size of a
result before it is computed, and types the results of nodes that were refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx

from quantglow.frontend.context import Unsupported
from quantglow.frontend.values import Known, Value, onnx_type_of, shape_of
from quantglow.types import Array

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What evaluating or importing a malformed node may raise."""

INFERENCE_FAILURES = (
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
)

_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
_CHANGED = {"Hardmax": 13, "LogSoftmax": 13, "Resize": 11, "Softmax": 13}
"""Opset since which the evaluator's meaning holds, for ops it has in one version only."""

_IMPLEMENTED = {"DequantizeLinear": 19}
"""Opset whose evaluation also serves older opsets, for ops it does not have in an older one."""

MAX_CONSTANT_ELEMENTS = 2**28
"""Larger results are not computed at import (1 GiB as float32)."""

_SMALL = 4096


def foldable(proto: onnx.NodeProto, operands: Mapping[str, Value], opset: int) -> bool:
    """Whether the node has one result, and it is known: no random numbers, no subgraphs."""
    kinds = {attribute.type for attribute in proto.attribute}
    if proto.op_type in _RANDOM or onnx.AttributeProto.GRAPH in kinds:
        return False
    if opset < _CHANGED.get(proto.op_type, 0):
        return False
    return all(isinstance(value, Known) for value in operands.values())


def fold(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]
) -> list[Known]:
    """The values of the named outputs.  Raises ``Unsupported`` where ONNX cannot evaluate them."""
    check_size(proto, operands, opsets)
    outputs = [name for name in proto.output if name]
    feeds = {name: v.array for name, v in operands.items() if isinstance(v, Known)}
    graph = onnx.helper.make_graph(
        [proto], "fold", [typed(name, v) for name, v in operands.items()], []
    )
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    version = max(opsets[""], _IMPLEMENTED.get(proto.op_type, 0))
    try:
        arrays = evaluator_class()(graph, opsets={**opsets, "": version}).run(None, feeds)
        return [Known(n, as_array(a)) for n, a in zip(outputs, arrays, strict=True)]
    except FAILURES as error:
        raise Unsupported(f"it is constant, but cannot be evaluated: {error}") from None


@cache
def evaluator_class() -> Any:
    """``ReferenceEvaluator``, imported by who needs it first: few models do, and it takes long."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator


def as_array(value: object) -> Array:
    """A tensor result; sequences and optionals are no tensors."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"the result is a {type(value).__name__}, not a tensor")
    return np.asarray(value)


def check_size(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]
) -> None:
    """Raise ``Unsupported`` before a hostile node fills the memory."""
    for name, (_, shape) in inferred_types(proto, operands, opsets).items():
        if shape is not None and math.prod(shape) > MAX_CONSTANT_ELEMENTS:
            raise Unsupported(f"constant {name!r} would have shape {shape}")


def inferred_types(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]
) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Element type and (if it is known) shape of every output that ONNX can infer."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, opsets[proto.domain], proto.domain)
        types = onnx.shape_inference.infer_node_outputs(
            schema,
            with_defaults(proto, opsets),
            {name: typed(name, v).type for name, v in operands.items()},
            {n: small for n, v in operands.items() if (small := small_tensor(v)) is not None},
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except (*INFERENCE_FAILURES, *FAILURES):
        return {}
    return {name: read_type(kind) for name, kind in types.items() if kind.HasField("tensor_type")}


def with_defaults(proto: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """The node with what it leaves out: ONNX's inference forgets that STFT is onesided."""
    schema = onnx.defs.get_schema(proto.op_type, opsets[proto.domain], proto.domain)
    stated = {attribute.name for attribute in proto.attribute}
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    made.attribute.extend(
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in stated and attribute.default_value.type
    )
    return made


def typed(name: str, value: Value) -> onnx.ValueInfoProto:
    made: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(
        name, onnx_type_of(value), shape_of(value)
    )
    return made


def small_tensor(value: Value) -> onnx.TensorProto | None:
    """A known integer operand, which may decide the shape of the result."""
    if not isinstance(value, Known) or value.array.size > _SMALL or value.array.dtype.kind != "i":
        return None
    return onnx.numpy_helper.from_array(value.array)


def read_type(kind: onnx.TypeProto) -> tuple[int, tuple[int, ...] | None]:
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in dims):
        return int(tensor.elem_type), None
    return int(tensor.elem_type), tuple(int(d.dim_value) for d in dims)
