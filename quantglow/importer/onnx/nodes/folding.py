"""Nodes whose operands are all known are evaluated at import by ``onnx.reference``.

This is what makes shape arithmetic disappear.  ONNX's own shape inference bounds the size of a
result before it is computed, and types the results of nodes that were refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.nodes.context import Unsupported
from quantglow.importer.onnx.nodes.values import (
    KnownSizes,
    KnownValue,
    ObjectValue,
    Value,
    value_onnx_type,
    value_shape,
)
from quantglow.ir.ops.work import ELEMENT_WORK
from quantglow.ir.symbolic.size import Size
from quantglow.support.arrays import Array

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
"""Exceptions that evaluating or importing a malformed node may raise."""

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
INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
"""Types whose results the evaluator may give in another width."""

_CHANGED = {"Hardmax": 13, "LogSoftmax": 13, "Resize": 11, "Softmax": 13}
"""Opset since which the evaluator's meaning holds, for ops it has in one version only."""

_IMPLEMENTED = {"DequantizeLinear": 19}
"""Opset whose evaluation also serves older opsets, for ops it does not have in an older one."""

_PRODUCTS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "Einsum", "QLinearConv"})
"""Operators whose work is bounded by elements of the result times those of an operand."""

_LOOPS = frozenset(
    {
        *("AveragePool", "Col2Im", "DeformConv", "Erf", "GatherElements", "GatherND", "GridSample"),
        *("LpPool", "LRN", "MaxPool", "MaxUnpool", "NonMaxSuppression", "Resize", "RoiAlign"),
        *("Scatter", "ScatterElements", "ScatterND", "STFT", "StringNormalizer", "TensorScatter"),
        *("TfIdfVectorizer", "Upsample"),
    }
)
"""Operators that the evaluator computes in a loop of Python over the elements."""

LOOP_WORK = 20_000
"""Multiply-accumulates of a matrix product in the time in which Python computes one element."""

SLOW_PRODUCT = 100
"""The same for a multiply-accumulate of types for which NumPy has no fast product."""

LARGEST_CODE = 2**30
"""Codes below stay integers of 32 bits when a zero point is added."""

_SMALL = 4096


def foldable(proto: onnx.NodeProto, operands: Mapping[str, Value], opset: int) -> bool:
    """Whether the node has one result, and it is known: no random numbers, no subgraphs; and
    whether the evaluator gives it as ONNX says."""
    kinds = {attribute.type for attribute in proto.attribute}
    if proto.op_type in _RANDOM or onnx.AttributeProto.GRAPH in kinds:
        return False
    if opset < _CHANGED.get(proto.op_type, 0):
        return False
    arrays = [
        value.array
        for value in operands.values()
        if isinstance(value, KnownValue) and not isinstance(value, KnownSizes)
    ]
    if len(arrays) < len(operands):
        return False
    return proto.op_type != "QuantizeLinear" or _are_in_range(*arrays[:2])


def _are_in_range(x: Array, scale: Array) -> bool:
    """Whether codes fit 32 bits before they are saturated: to the integer of a larger quotient, or
    of an infinity, the evaluator adds the zero point, and the sum has the wrong sign."""
    with np.errstate(all="ignore"):
        smallest = np.abs(scale.astype(np.float64)).min(initial=np.inf)
        return bool((np.abs(x.astype(np.float64)) < LARGEST_CODE * smallest).all())


def fold(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int], meter: Meter
) -> list[KnownValue]:
    """The values of the named outputs.  Raises ``Unsupported`` where ONNX cannot evaluate them."""
    kinds = admit(proto, operands, opsets, meter)
    outputs = [name for name in proto.output if name]
    if (mean := _mean_of_nothing(proto, operands, opsets)) is not None:
        return [KnownValue(outputs[0], mean)]
    feeds = {name: v.array for name, v in operands.items() if isinstance(v, KnownValue)}
    graph = onnx.helper.make_graph(
        [proto], "fold", [value_info(name, v) for name, v in operands.items()], []
    )
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    version = max(opsets[""], _IMPLEMENTED.get(proto.op_type, 0))
    try:
        arrays = _evaluator_class()(graph, opsets={**opsets, "": version}).run(None, feeds)
        results = [
            KnownValue(n, _of_kind(_as_array(a), kinds.get(n)))
            for n, a in zip(outputs, arrays, strict=True)
        ]
    except FAILURES as error:
        raise Unsupported(f"it is constant, but cannot be evaluated: {error}") from None
    for result in results:
        meter.count(result.name, result.shape, result.array.itemsize)
    return results


@cache
def _evaluator_class() -> Any:
    """``ReferenceEvaluator``, imported by who needs it first: few models do, and it takes long."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator


def _mean_of_nothing(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]
) -> Array | None:
    """NaN in the shape of a mean over no element, of which NumPy warns; None for other nodes."""
    data = operands.get(next(iter(proto.input), ""))
    if proto.op_type != "ReduceMean" or not isinstance(data, KnownValue) or data.array.size:
        return None
    _, shape = infer_types(proto, operands, opsets).get(proto.output[0], (0, None))
    return None if shape is None else np.full(shape, np.nan).astype(data.array.dtype)


def _of_kind(array: Array, element: int | None) -> Array:
    """An array as this type of ONNX: the evaluator adds small integers as int64."""
    if element in INTEGERS:
        return array.astype(onnx.helper.tensor_dtype_to_np_dtype(element), copy=False)
    return array


def _as_array(value: object) -> Array:
    """A tensor result; sequences and optionals are not tensors."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"the result is a {type(value).__name__}, not a tensor")
    return np.asarray(value)


def admit(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int], meter: Meter
) -> dict[str, int]:
    """The element types of the results, as far as ONNX infers them.

    Raises ``ImportBudgetError`` before a hostile node fills the memory or never ends.
    """
    results, kinds = 0, dict[str, int]()
    for name, (element, shape) in infer_types(proto, operands, opsets).items():
        kinds[name] = element
        if shape is not None:
            meter.reserve(name, shape, _element_nbytes(element))
            results += math.prod(shape)
    meter.spend(_work_of_evaluation(proto, operands, results))
    return kinds


def _element_nbytes(element: int) -> int:
    """Bytes of an element in memory; at least those of one in a NumPy array of objects."""
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize)
    except KeyError:
        return 8


def _work_of_evaluation(proto: onnx.NodeProto, operands: Mapping[str, Value], results: int) -> int:
    """Upper bound of the time of an evaluation, in multiply-accumulates of a matrix product."""
    arrays = [value.array for value in operands.values() if isinstance(value, KnownValue)]
    elements = results + sum(array.size for array in arrays)
    moved = elements * (LOOP_WORK if proto.op_type in _LOOPS else ELEMENT_WORK)
    is_fast = all(array.dtype.char in "fd" for array in arrays)
    return moved + _count_products(proto, arrays, results) * (1 if is_fast else SLOW_PRODUCT)


def _count_products(proto: onnx.NodeProto, arrays: Sequence[Array], results: int) -> int:
    """Upper bound of the multiply-accumulates of a node that is a product, else 0."""
    kind = proto.op_type
    if kind in _PRODUCTS:
        return results * max((array.size for array in arrays), default=0)
    if kind == "Gemm" or "MatMul" in kind:
        return results * max(((0, *array.shape)[-1] for array in arrays[:2]), default=0)
    return 0


def infer_types(
    proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]
) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Element type and (if it is known) shape of every output that ONNX can infer."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, opsets[proto.domain], proto.domain)
        types = onnx.shape_inference.infer_node_outputs(
            schema,
            with_defaults(proto, opsets),
            {name: value_info(name, v).type for name, v in operands.items()},
            {n: small for n, v in operands.items() if (small := _small_tensor(v)) is not None},
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except (*INFERENCE_FAILURES, *FAILURES):
        return {}
    return {name: _read_type(kind) for name, kind in types.items() if kind.HasField("tensor_type")}


def with_defaults(proto: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """The node with what it leaves out: ONNX's inference forgets that STFT is onesided."""
    schema = onnx.defs.get_schema(proto.op_type, opsets[proto.domain], proto.domain)
    stated = {attribute.name for attribute in proto.attribute}
    completed = onnx.NodeProto()
    completed.CopyFrom(proto)
    completed.attribute.extend(
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in stated and attribute.default_value.type
    )
    return completed


def value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    """ONNX's type of a value, without the sizes that are free."""
    if isinstance(value, ObjectValue) and value.shape is None:
        return onnx.ValueInfoProto(name=name, type=value.declared)
    shape = value_shape(value)
    dims = None if shape is None else [None if isinstance(size, Size) else size for size in shape]
    info: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(
        name, value_onnx_type(value), dims
    )
    return info


def _small_tensor(value: Value) -> onnx.TensorProto | None:
    """A known operand that may decide the shape of the result."""
    if (
        not isinstance(value, KnownValue)
        or value.array.size > _SMALL
        or value.array.dtype.kind not in "if"
    ):
        return None
    return onnx.numpy_helper.from_array(value.array)


def _read_type(kind: onnx.TypeProto) -> tuple[int, tuple[int, ...] | None]:
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in dims):
        return int(tensor.elem_type), None
    return int(tensor.elem_type), tuple(int(d.dim_value) for d in dims)
