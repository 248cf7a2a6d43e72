"""Importers of QuantizeLinear and DequantizeLinear, and of integers that only move.

uint8 becomes int8 with codes and zero point 128 lower: the same reals.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, ImportScope, Unsupported, importer, recode
from quantglow.importer.onnx.nodes.folding import fold
from quantglow.importer.onnx.nodes.values import (
    Blocked,
    Coded,
    IntegerValue,
    KnownValue,
    Value,
    as_float32,
    is_float_type,
    type_in_words,
    value_onnx_type,
)
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.expression import arg
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.groupwise import GRAIN, LONGEST, PackedWeights, pack_codes
from quantglow.ir.ops.quantization import Dequantize, Quantize, Table
from quantglow.ir.symbolic.size import Shape, decide
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array

Run = Callable[[onnx.NodeProto, ImportScope], dict[str, Value]]
"""Imports one node."""

TP = onnx.TensorProto
STORED: dict[int, tuple[DType, int]] = {
    TP.INT8: (DType.I8, 0),
    TP.UINT8: (DType.I8, 128),
    TP.INT16: (DType.I16, 0),
    TP.UINT16: (DType.I16, 2**15),
}
"""How integers of an ONNX type are kept at run time, and what their codes are lower by."""

CONSTANT_STORED = {
    **STORED,
    TP.INT4: (DType.I8, 0),
    TP.UINT4: (DType.I8, 0),
    TP.INT2: (DType.I8, 0),
    TP.UINT2: (DType.I8, 0),
    TP.INT32: (DType.I32, 0),
}
"""The same for integers known at import."""

ON_INTEGERS = frozenset({"DequantizeLinear", f"{MICROSOFT}.DequantizeLinear"})
"""Operators that are not folded: known integers stay integers."""

MOVES = {
    *("Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GlobalMaxPool"),
    *("Identity", "MaxPool", "ReduceMax", "ReduceMin", "Reshape", "Slice", "SpaceToDepth"),
    *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
"""Operators that give elements of their operands: they do the same on codes."""

LAYOUTS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
"""Operators that may stand between DequantizeLinear and the operator that wants weights."""


@dataclass(frozen=True)
class Parameters:
    """Scale and zero point operands: float32 and integers, of an ONNX integer type."""

    scales: Array
    zero_points: Array
    onnx_type: int
    axis: int = 0

    def element(self) -> ElementType:
        """The type of run-time values.  Raises ``Unsupported``."""
        if self.onnx_type not in STORED:
            raise Unsupported(f"run-time values of type {type_in_words(self.onnx_type)}")
        dtype, offset = STORED[self.onnx_type]
        zero_points = tuple(int(z) - offset for z in self.zero_points.reshape(-1))
        scales = tuple(float(s) for s in self.scales.reshape(-1))
        params = QuantParams(scales, zero_points, None if self.scales.size == 1 else self.axis)
        return ElementType(dtype, params)

    @property
    def offset(self) -> int:
        return STORED[self.onnx_type][1]


def _parse_parameters(
    call: Call, scale: int, zero_point: int, onnx_type: int, axis: int = 0
) -> Parameters:
    """The parameters at these operand positions.  Raises ``Unsupported`` where they are computed,
    and where they differ within a channel."""
    scales = as_float32(call.array(scale, "scale"))
    zero_points = np.zeros(scales.shape, np.int32)
    if call.has(zero_point):
        points = call.array(zero_point, "zero point")
        onnx_type = KnownValue("", points).onnx_type
        zero_points = points.astype(np.int32)
    if not scales.size:
        raise Unsupported("the scale has no element")
    if scales.size > 1 and scales.ndim != 1:
        raise Unsupported("run-time values quantized by blocks")
    return Parameters(scales, np.broadcast_to(zero_points, scales.shape), onnx_type, axis)


@importer("QuantizeLinear", f"{MICROSOFT}.QuantizeLinear")
def quantize_linear(call: Call) -> IntegerValue:
    """A rounding of the user's: to exactly this type."""
    x = call.node(0)
    onnx_type = call.integer("output_dtype", 0) or TP.UINT8
    parameters = _parse_parameters(call, 1, 2, onnx_type, _channel_axis(call, x.type.rank))
    _check_scales(parameters.scales, x.type.shape, parameters.axis)
    codes = Quantize(name=call.result, x=x, out=parameters.element())
    return IntegerValue(codes, parameters.offset, parameters.onnx_type)


def _channel_axis(call: Call, rank: int) -> int:
    axis = call.integer("axis", 1)
    return axis + rank if axis < 0 else axis


@importer("DequantizeLinear", f"{MICROSOFT}.DequantizeLinear")
def dequantize_linear(call: Call) -> Node | KnownValue:
    value = call.value(0)
    if isinstance(value, KnownValue):
        return code(call, value)
    axis = _channel_axis(call, len(call.shape(0)))
    _check_scales(call.array(1, "scale"), call.shape(0), axis)
    if value_onnx_type(value) == TP.INT32:
        return _dequantize_sums(call, axis)
    return Dequantize(name=call.result, x=store(call, 0, 1, 2, axis))


def _check_scales(scales: Array, shape: Shape, axis: int) -> None:
    """Raise ``ValueError`` for a vector of scales that is not one for each element of an axis."""
    count = scales.size
    is_vector = scales.ndim == 1 and count > 1
    if is_vector and (axis >= len(shape) or decide(shape[axis] != count)):
        raise ValueError(f"{count} scales do not fit axis {axis} of {shape}")


def _dequantize_sums(call: Call, axis: int) -> Node:
    """``float(x - zero_point) * scale`` of int32 that were computed, as sums of products are."""
    x, parameters = call.tensor(0), _parse_parameters(call, 1, 2, TP.INT32, axis)
    shape = tuple(-1 if i == axis else 1 for i in range(x.type.rank))
    shape = shape if parameters.scales.size > 1 else ()
    scales = call.constant("scale", parameters.scales.reshape(shape))
    zero_points = parameters.zero_points.astype(np.int32).reshape(shape)
    points = Constant(name=call.derive("zero_point"), value=zero_points)
    value = fn("mul", fn("float", fn("isub", arg(0), arg(2))), arg(1))
    out = ElementType(DType.F32)
    return Elementwise(name=call.result, args=(x, scales, points), expression=value, out=out)


def store(call: Call, position: int, scale: int, zero_point: int, axis: int = 0) -> Node:
    """A run-time operand as integers of the type that its parameters say."""
    value, name = call.value(position), call.value_name(position)
    if isinstance(value, IntegerValue):
        parameters = _parse_parameters(call, scale, zero_point, value.onnx_type, axis)
        return _reinterpret(value, parameters.element(), parameters.offset, call)
    x = call.tensor(position)
    parameters = _parse_parameters(call, scale, zero_point, value_onnx_type(x), axis)
    element = parameters.element()
    if x.type.quant or x.type.dtype.limits[0] != element.dtype.limits[0] + parameters.offset:
        raise Unsupported(f"{name!r} is {x.type.dtype}, which its zero point is not")
    # Integers that a caller feeds, or that were computed as such.
    return recode(call.derive("stored"), x, element, -parameters.offset, call.scope)


def _reinterpret(value: IntegerValue, element: ElementType, offset: int, call: Call) -> Node:
    """The same codes under other parameters: what ONNX means where they differ."""
    node = value.node
    if node.type.dtype is not element.dtype or value.offset != offset:
        raise Unsupported(f"{node.name!r} is read as another integer type than it has")
    if node.type.element == element:
        return node
    return recode(call.derive("as"), node, element, 0, call.scope)


def code(call: Call, value: KnownValue) -> KnownValue:
    """DequantizeLinear of known integers: of any ONNX type, blocked too, at least as floats."""
    folded, block = _reals(call, value), call.integer("block_size", 0)
    packed = _expand_blocks(call, value, folded, block) if block else None
    if packed is not None or value.onnx_type not in CONSTANT_STORED:
        return packed or folded
    dtype, offset = CONSTANT_STORED[value.onnx_type]
    codes = value.array.astype(np.int32) - offset
    scales = as_float32(call.array(1, "scale"))
    zero_points = np.zeros(scales.shape, np.int32)
    if call.has(2):
        zero_points = call.array(2, "zero point").astype(np.int32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        return folded
    axis = _channel_axis(call, codes.ndim)
    spread = [
        _over_blocks(a, codes.shape, axis, block) if block else spread_along(a, codes.shape, axis)
        for a in (scales, zero_points - offset)
    ]
    return Coded(folded.name, folded.array, codes.astype(dtype.numpy), *spread)


def _reals(call: Call, value: KnownValue) -> KnownValue:
    """The real numbers of known integers: by a formula where it is plain, as for most weights, else
    by ONNX's evaluator, which takes long."""
    codes, scales, axis = value.array, call.array(1, "scale"), _channel_axis(call, value.array.ndim)
    points = call.array(2, "zero point") if call.has(2) else np.zeros(scales.shape, codes.dtype)
    is_standard = value.onnx_type in CONSTANT_STORED and not call.integer("output_dtype", 0)
    is_exact = codes.dtype == points.dtype and (codes.dtype != np.int32 or not points.any())
    is_layout = not scales.ndim or (axis >= 0 and scales.shape == codes.shape[axis : axis + 1])
    has_floats = scales.dtype == np.float32 and points.shape == scales.shape
    if is_standard and is_exact and is_layout and has_floats:
        scales, points = (spread_along(a, codes.shape, axis) for a in (scales, points))
        array = (codes.astype(np.int32) - points.astype(np.int32)).astype(np.float32) * scales
        reals = KnownValue(call.proto.output[0], array)
        call.scope.meter.count(reals.name, reals.shape, array.itemsize)
        return reals
    names = [name for name in call.proto.input if name]
    operands = {name: call.scope.values[name] for name in names}
    proto = onnx.NodeProto()
    proto.CopyFrom(call.proto)
    proto.domain = ""  # the standard domain has the same operator
    (folded,) = fold(proto, operands, call.scope.opsets, call.scope.meter)
    return folded


CODES: dict[int, tuple[int, int]] = {
    TP.INT2: (2, -2),
    TP.UINT2: (2, 0),
    TP.INT4: (4, -8),
    TP.UINT4: (4, 0),
    TP.INT8: (8, -128),
    TP.UINT8: (8, 0),
}
"""Bits and the least integer of types whose blocks a product takes as packed codes."""


def _expand_blocks(call: Call, value: KnownValue, folded: KnownValue, block: int) -> Blocked | None:
    """A matrix in blocks as packed codes; None if it has no such form."""
    axis, scales = _channel_axis(call, value.array.ndim), as_float32(call.array(1, "scale"))
    if value.array.ndim != 2 or value.onnx_type not in CODES or block % GRAIN or block > LONGEST:
        return None
    bits, least = CODES[value.onnx_type]
    points = np.zeros(scales.shape, np.int32)
    if call.has(2):
        points = call.array(2, "zero point").astype(np.int32)
    codes = value.array.astype(np.int32)
    if axis == 0:
        codes, scales, points = codes.T, scales.T, points.T
    groups = scales.shape[1]
    filled = np.zeros((len(codes), groups * block), np.uint8)
    filled[:, : codes.shape[1]] = codes - least
    parts = filled.reshape(len(codes), groups, block)
    points = (points - least).astype(np.uint8)
    is_middle = (points == 2 ** (bits - 1)).all()
    zero_points = None if is_middle else np.ascontiguousarray(points)
    packed = PackedWeights(pack_codes(parts, bits), np.ascontiguousarray(scales), zero_points, bits)
    return Blocked(folded.name, folded.array, packed, axis)


def spread_along(array: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Per-axis parameters in the shape of what they belong to."""
    if array.size == 1:
        return np.broadcast_to(array.reshape(()), shape)
    sizes = tuple(-1 if i == axis else 1 for i in range(len(shape)))
    return np.broadcast_to(array.reshape(sizes), shape)


def _over_blocks(array: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Parameters of blocks along an axis in the shape of what they belong to."""
    return np.repeat(array, block, axis).take(range(shape[axis]), axis)


def import_moved(proto: onnx.NodeProto, scope: ImportScope, run: Run) -> dict[str, Value] | None:
    """The results of an operator that moves integers, None for other operators.

    ``run`` imports the node on their codes.
    """
    operands = {name: scope.values[name] for name in proto.input if name}
    first = operands.get(proto.input[0]) if proto.input else None
    if not isinstance(first, IntegerValue) or not _moves(proto):
        return None
    moved = operands if proto.op_type == "Concat" else {proto.input[0]: first}
    integers = {name: v for name, v in moved.items() if isinstance(v, IntegerValue)}
    if len(integers) < len(moved) or not all(_alike(v, first) for v in integers.values()):
        return None
    codes: dict[str, Value] = {n: align(n, v, first, scope) for n, v in integers.items()}
    results = run(proto, replace(scope, values=ChainMap(codes, scope.values)))
    return {
        name: replace(first, node=result) if isinstance(result, Node) else result
        for name, result in results.items()
    }


def _moves(proto: onnx.NodeProto) -> bool:
    if proto.op_type == "Resize":
        modes = [a.s for a in proto.attribute if a.name == "mode"]
        return modes in ([], [b"nearest"])
    return proto.op_type in MOVES and not proto.domain


def _alike(one: IntegerValue, other: IntegerValue) -> bool:
    """Whether equal codes are equal integers."""
    same_type = (one.onnx_type, one.node.type.dtype) == (other.onnx_type, other.node.type.dtype)
    return same_type and one.offset == other.offset


def align(name: str, value: IntegerValue, first: IntegerValue, scope: ImportScope) -> Node:
    """The codes with the parameters of the first operand: ONNX joins integers, not reals."""
    element = first.node.type.element
    if value.node.type.element == element:
        return value.node
    return recode(scope.claim(f"{name}:as", derived=True), value.node, element, 0, scope)


def lay_out(
    proto: onnx.NodeProto, operands: Mapping[str, Value], scope: ImportScope
) -> KnownValue | None:
    """A layout operator on known integers that were dequantized: they stay integers."""
    value = operands.get(proto.input[0]) if proto.input else None
    if proto.op_type == "Transpose" and not proto.domain and isinstance(value, Blocked):
        perms = [tuple(a.ints) for a in proto.attribute if a.name == "perm"]
        return value.transposed(proto.output[0]) if perms in ([], [(1, 0)]) else None
    if proto.op_type not in LAYOUTS or not isinstance(value, Coded | Blocked):
        return None
    coded = value.coded() if isinstance(value, Blocked) else value
    others = {name: v for name, v in operands.items() if v is not value}

    def layout(array: Array) -> Array:
        values = {proto.input[0]: KnownValue(value.name, array), **others}
        (folded,) = fold(proto, values, scope.opsets, scope.meter)
        return folded.array

    return replace(coded.laid_out(layout), name=proto.output[0])


def import_index(proto: onnx.NodeProto, scope: ImportScope, run: Run) -> dict[str, Value] | None:
    """Integers made wider, shifted, and used to look up known floats; None for all else."""
    if proto.op_type not in INDEXING or not all(proto.input):
        return None
    call = Call(proto, scope)
    result = INDEXING[proto.op_type](call)
    return None if result is None else {proto.output[0]: result}


def _widen(call: Call) -> IntegerValue | None:
    """Cast to integers that hold them all."""
    value, wide = call.value(0), call.integer("to", 0)
    if isinstance(value, IntegerValue) and wide in (TP.INT32, TP.INT64):
        return replace(value, onnx_type=wide)
    return None


def _shift(call: Call) -> IntegerValue | None:
    """Add of a known scalar to wider integers."""
    value, other = call.value(0), call.value(1)
    if isinstance(value, IntegerValue) and isinstance(other, KnownValue) and other.array.size == 1:
        offset = value.offset + int(other.array.reshape(()))
        fits = other.array.ndim <= len(value.shape) and abs(offset) <= 2**16
        if value.onnx_type in (TP.INT32, TP.INT64) and fits:
            return replace(value, offset=offset)
    return None


def _look_up(call: Call) -> Node | None:
    """Gather of known floats at codes counted from 0: a Table."""
    data, value = call.value(0), call.value(1)
    if not isinstance(value, IntegerValue) or not isinstance(data, KnownValue):
        return None
    if not is_float_type(data.onnx_type):
        return None
    lowest, highest = value.node.type.dtype.limits
    if value.offset != -lowest or data.shape != (highest - lowest + 1,):
        return None
    entries = call.constant("table", data.array)
    return Table(name=call.result, x=value.node, table=entries, out=ElementType(DType.F32))


INDEXING: dict[str, Callable[[Call], Value | None]] = {
    "Add": _shift,
    "Cast": _widen,
    "Gather": _look_up,
}
"""How tables of a function are written, see ``export_elementwise``."""
