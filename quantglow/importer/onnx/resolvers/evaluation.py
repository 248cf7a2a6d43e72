"""Evaluation of nodes whose operands are known, or are sizes of free dimensions.

Two kinds of nodes are not left to ``onnx.reference``, which ``nodes.folding`` uses for the rest.

Known integers, of which some are free sizes: ``onnx.reference`` cannot compute with these.  The
operators here are those by which exporters compute shapes; one without an importer has them as
operands at run time; any other one gets the sizes of the shape at hand, by a guard.

Floats: a node is evaluated as the operator that it is imported as, so a value means the same
whether it is known at import or computed later.  ``onnx.reference`` has another idea of rounded-up
pools, of sequences of different lengths and of more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, cast

import numpy as np
import onnx

from quantglow.importer.onnx.budget import Meter
from quantglow.importer.onnx.domains import ML
from quantglow.importer.onnx.nodes.context import (
    IMPORTERS,
    Call,
    Importer,
    ImportScope,
    Result,
    Unsupported,
    qualify,
)
from quantglow.importer.onnx.nodes.folding import admit, infer_types
from quantglow.importer.onnx.nodes.values import KnownSizes, KnownValue, Value
from quantglow.importer.onnx.resolvers.external import left_to_fallback
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.native import computing_with
from quantglow.ir.ops.work import count_work
from quantglow.ir.symbolic.size import (
    Dim,
    Size,
    constant_or_size,
    decide,
    has_free,
    integers,
    maximum,
    minimum,
)
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError

INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

Compute = Callable[[Call, Sequence[Array]], Array]

_READERS = frozenset(
    {
        *("ConstantOfShape", "Expand", "GroupQueryAttention", "Loop", "Pad", "Range", "Reshape"),
        *("Resize", "Shape", "Size", "Slice", "Split", "Tile", "Upsample"),
    }
)
"""Operators whose importers take free sizes."""

_AT_RUN_TIME = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mul", "Sub", "Where"),
    }
)
"""Operators for which a free size is a value as any other, if another operand is not known."""

FLOAT = onnx.TensorProto.FLOAT
COMPUTED = frozenset({FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL})
"""Element types of operands and results; on others importers may compute with other ones."""

BYTES = frozenset({"DynamicQuantizeLinear"})
"""Operators whose importers give uint8 as they are."""

ABSENT_IF_EMPTY = frozenset({"Resize"})
"""Operators of which no operand is an empty tensor: such a one is left out."""

Bind = Callable[[onnx.NodeProto, Sequence[Result], ImportScope], dict[str, Value]]
"""``importer.bind``."""


def with_free_sizes(
    proto: onnx.NodeProto, scope: ImportScope, resolve: object
) -> dict[str, Value] | None:
    """The value of a node of known operands, some of which are free; None for other nodes."""
    operands = [scope.values[name] for name in proto.input if name]
    if not any(isinstance(value, KnownSizes) for value in operands):
        return None
    compute = _COMPUTE.get(proto.op_type)
    if compute is not None and all(isinstance(value, KnownValue) for value in operands):
        arrays = [value.array for value in operands if isinstance(value, KnownValue)]
        result = compute(Call(proto, scope), arrays)
        if result is not None:
            sizes = _settle(result)
            _exclude_ones(partial(compute, Call(proto, scope)), arrays, sizes)
            return {proto.output[0]: known_value(proto.output[0], sizes)}
    is_computed = any(not isinstance(value, KnownValue) for value in operands)
    if is_computed and (proto.op_type in _AT_RUN_TIME or qualify(proto) not in IMPORTERS):
        return None
    if proto.op_type in _READERS:
        return None
    for name in proto.input:
        value = scope.values.get(name)
        if isinstance(value, KnownSizes):
            scope.values[name] = value.fixed()
    return None


def _exclude_ones(
    compute: Callable[[Sequence[Array]], Any], arrays: Sequence[Array], expected: Array
) -> None:
    """Record of each symbol that it is not 1, if the result would not be ``expected`` there.

    Sizes are simplified for dimensions of 2 or more: ``min(N, 2)`` is 2, ``1 // N`` is 0.
    """
    sizes = [value for array in arrays for value in array.reshape(-1) if isinstance(value, Size)]
    for name in frozenset[str]().union(*(size.expression.names for size in sizes)):
        guards = sizes[0].guards
        values = {**guards.hints, name: 1}
        try:
            actual = compute([at(array, values) for array in arrays])
            is_alike = np.array_equal(actual, at(expected, values))
        except ArithmeticError:
            is_alike = False
        if not is_alike:
            guards.exclude_one(name)


def at(array: Array, values: Mapping[str, int]) -> Array:
    """The integers for values of all symbols."""
    if array.dtype != object:
        return array
    parts = [v.expression.at(values) if isinstance(v, Size) else v for v in array.reshape(-1)]
    return np.array(parts, np.int64).reshape(array.shape)


def _settle(array: Array) -> Array:
    """The sizes with those that have one value only as integers."""
    return integers(np.frompyfunc(constant_or_size, 1, 1)(array)) if has_free(array) else array


def known_value(name: str, array: Array) -> KnownValue:
    """A known value, of which some elements may be free."""
    return KnownSizes(name, array) if has_free(array) else KnownValue(name, array)


def _elementwise(function: Callable[[Any, Any], Any]) -> Compute:
    def compute(call: Call, arrays: Sequence[Array]) -> Array:
        apply = np.frompyfunc(function, 2, 1)
        return integers(reduce(apply, (a.astype(object) for a in arrays)))

    return compute


def _quotient(a: Dim, b: Dim) -> Dim:
    """Rounded towards 0, as ONNX does."""
    return a // b if decide(a >= 0) == decide(b > 0) else -(-a // b)


def _gather(call: Call, arrays: Sequence[Array]) -> Array | None:
    if has_free(arrays[1]):
        return None
    return np.asarray(np.take(arrays[0], arrays[1], axis=call.integer("axis", 0)))


def _concat(call: Call, arrays: Sequence[Array]) -> Array:
    return integers(np.concatenate(arrays, axis=call.integer("axis", 0)))


def _unsqueeze(call: Call, arrays: Sequence[Array]) -> Array:
    return np.expand_dims(arrays[0], call.parameter("axes", 1) or ())


def _squeeze(call: Call, arrays: Sequence[Array]) -> Array:
    return np.squeeze(arrays[0], call.parameter("axes", 1))


def _slice(call: Call, arrays: Sequence[Array]) -> Array | None:
    if any(map(has_free, arrays[1:])):
        return None
    starts, ends = call.parameter("starts", 1) or (), call.parameter("ends", 2) or ()
    axes = call.parameter("axes", 3) or tuple(range(len(starts)))
    steps = call.parameter("steps", 4) or (1,) * len(starts)
    index = [slice(None)] * arrays[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return integers(arrays[0][tuple(index)])


def _cast(call: Call, arrays: Sequence[Array]) -> Array | None:
    return arrays[0] if call.integer("to", 0) in INTEGERS else None


def _reshape(call: Call, arrays: Sequence[Array]) -> Array | None:
    return None if has_free(arrays[1]) else arrays[0].reshape(arrays[1].tolist())


def _product(call: Call, arrays: Sequence[Array]) -> Array | None:
    if arrays[0].ndim > 1:
        return None
    product = math.prod(arrays[0].reshape(-1).tolist())
    return integers(
        np.full((1,) * arrays[0].ndim if call.integer("keepdims", 1) else (), product, object)
    )


def _where(call: Call, arrays: Sequence[Array]) -> Array:
    return integers(np.where(*arrays))


def _equal(call: Call, arrays: Sequence[Array]) -> Array:
    apply = np.frompyfunc(lambda a, b: decide(a == b), 2, 1)
    return np.asarray(apply(*(a.astype(object) for a in arrays)), bool)


_COMPUTE: Mapping[str, Compute | Callable[..., Array | None]] = {
    "Add": _elementwise(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _elementwise(_quotient),
    "Equal": _equal,
    "Gather": _gather,
    "Identity": lambda call, arrays: arrays[0],
    "Max": _elementwise(lambda a, b: maximum((a, b))),
    "Min": _elementwise(lambda a, b: minimum((a, b))),
    "Mul": _elementwise(lambda a, b: a * b),
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(lambda a, b: a - b),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def is_ours(proto: onnx.NodeProto, operands: Mapping[str, Value], opsets: dict[str, int]) -> bool:
    """Whether the node is known, computes with float32, and its results are of types held.

    So are all of ai.onnx.ml: ``onnx.reference`` has another idea of the scores of trees, and gives
    integers where the operators give floats.
    """
    if (kind := qualify(proto)) not in IMPORTERS and proto.domain != ML:
        return False
    constants = [v for v in operands.values() if isinstance(v, KnownValue)]
    if len(constants) < len(operands):
        return False
    if not all(v.array.size or kind in ABSENT_IF_EMPTY for v in constants):
        return False
    kinds = {v.onnx_type for v in constants}
    held = COMPUTED | {onnx.TensorProto.UINT8} if kind in BYTES else COMPUTED
    if not kinds <= held or not (FLOAT in kinds or proto.domain == ML):
        return False
    return {element for element, _ in infer_types(proto, operands, opsets).values()} <= held


def evaluate_node(
    proto: onnx.NodeProto, operands: Mapping[str, Value], scope: ImportScope, bind: Bind
) -> dict[str, Value]:
    """The values of the node's outputs.

    A node that the importer refuses is evaluated by onnxruntime, or ``Unsupported`` is raised.
    """
    admit(proto, operands, scope.opsets, scope.meter)
    plain = {
        name: KnownValue(name, cast(KnownValue, value).array) for name, value in operands.items()
    }
    inner = replace(scope, values=dict[str, Value](plain), problems=[], claimed=set(), shared={})
    try:
        result = find_importer(proto)(Call(proto, inner))
        results = bind(proto, result if isinstance(result, Sequence) else [result], inner)
    except Unsupported as reason:
        results = _hand_over(proto, inner, reason)
    try:
        return {
            name: KnownValue(name, _compute(value, scope.meter))
            if isinstance(value, Node)
            else value
            for name, value in results.items()
            if name
        }
    except BackendError as error:
        raise Unsupported(f"it is constant, but cannot be evaluated: {error}") from error


def find_importer(proto: onnx.NodeProto) -> Importer:
    """The importer of the node.  Raises ``Unsupported``."""
    if (kind := qualify(proto)) not in IMPORTERS:
        raise Unsupported("there is no importer for this operator")
    return IMPORTERS[kind]


def _hand_over(proto: onnx.NodeProto, scope: ImportScope, reason: Unsupported) -> dict[str, Value]:
    """External nodes for what the importer refused.  Raises its reason where they may not be."""
    results = left_to_fallback(proto, scope, str(reason)) if scope.fallback else None
    if results is None:
        raise reason
    return results


def _compute(node: Node, meter: Meter) -> Array:
    """The value of a node that depends on Constants only, by NumPy wherever the import happens:
    sums of native code have another order, and one model has one graph."""

    def evaluate(step: Node, operands: Sequence[Array]) -> Array:
        if not isinstance(step, Constant):
            meter.reserve(step.name, step.type.shape, step.type.dtype.numpy.itemsize)
            meter.spend(int(count_work(step)))
        return step.evaluate(*operands)

    with computing_with(None):
        (result,) = Execution(Graph((), ((node.name, node),)), [node], evaluate).run()
    meter.count(node.name, result.shape, result.itemsize)
    return result
