"""Importers of integer arithmetic, comparisons, conditions and Cast: each is one ``Elementwise``.

Integers of up to 32 bits are computed in int32 and wrap to their type, as in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.context import Call, Imported, Unsupported, importer
from quantglow.importer.onnx.nodes.values import graph_dtype, type_in_words, value_onnx_type
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.binary import Where
from quantglow.ir.ops.expression import Expr, arg, const, iconst, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.functions import dtype_kind
from quantglow.ir.symbolic.size import Dim
from quantglow.ir.types import DType, ElementType

X, Y = arg(0), arg(1)


def map_elements(call: Call, expression: Expr, args: Sequence[Node], dtype: DType) -> Elementwise:
    """The expression as the result of the ONNX node."""
    return Elementwise(
        name=call.result, args=tuple(args), expression=expression, out=ElementType(dtype)
    )


def constant_like(dtype: DType, value: Dim) -> Expr:
    """A constant of the kind in which elements of ``dtype`` are computed."""
    kind = dtype_kind(dtype)
    if kind == "f":
        return const(float(value))
    return lconst(value) if kind == "l" else iconst(int(value))


def wrap(value: Expr, dtype: DType) -> Expr:
    """int32 modulo 2^8 or 2^16, in the range of ``dtype``; wider types wrap by themselves."""
    if dtype not in (DType.I8, DType.U8, DType.I16):
        return value
    low, high = dtype.limits
    shifted = fn("isub", value, iconst(low)) if low else value
    cut = fn("iand", shifted, iconst(high - low))
    return fn("iadd", cut, iconst(low)) if low else cut


def _signum(dtype: DType) -> Expr:
    zero, one, minus = (constant_like(dtype, v) for v in (0, 1, -1))
    below = fn("select", fn("lt", X, zero), minus, zero)
    return fn("select", fn("gt", X, zero), one, below)


def _negate(dtype: DType) -> Expr:
    return fn("isub", constant_like(dtype, 0), X)


_UNARY: dict[str, Callable[[DType], Expr]] = {
    "Abs": lambda dtype: fn("imax", X, _negate(dtype)),
    "BitwiseNot": lambda dtype: fn("ixor", X, constant_like(dtype, -1)),
    "Neg": _negate,
    "Relu": lambda dtype: fn("imax", X, constant_like(dtype, 0)),
    "Sign": _signum,
}
ON_INTEGERS = frozenset(_UNARY)
"""Functions of one value that take integer tensors too."""

_BINARY = {
    "Add": "iadd",
    "BitwiseAnd": "iand",
    "BitwiseOr": "ior",
    "BitwiseXor": "ixor",
    "Div": "idiv",
    "Max": "imax",
    "Min": "imin",
    "Mod": "imod",
    "Mul": "imul",
    "Sub": "isub",
}


@importer("BitwiseNot")
def integer_unary(call: Call) -> Node:
    """A function of one integer tensor."""
    x = call.tensor(0)
    value = _UNARY[call.proto.op_type](x.type.dtype)
    return map_elements(call, wrap(value, x.type.dtype), [x], x.type.dtype)


@importer("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def integer_fold(call: Call) -> Node:
    """A function of two or more integer tensors, from the left."""
    operands = call.tensors()
    dtype = operands[0].type.dtype
    name = _BINARY[call.proto.op_type]
    terms = [arg(i) for i in range(len(operands))]
    value = reduce(lambda x, y: wrap(fn(name, x, y), dtype), terms)
    return map_elements(call, value, operands, dtype)


@importer("Mod")
def mod(call: Call) -> Node:
    """With the sign of the divisor; with ``fmod`` of the dividend.  Division by zero gives 0."""
    x, y = call.tensor(0), call.tensor(1)
    truncated = call.integer("fmod", 0)
    if call.is_float(0):
        remainder = fn("fmod", X, Y)
        return map_elements(call, remainder if truncated else floor(remainder), [x, y], DType.F32)
    value = fn("irem" if truncated else "imod", X, Y)
    return map_elements(call, wrap(value, x.type.dtype), [x, y], x.type.dtype)


def floor(remainder: Expr) -> Expr:
    """A float remainder with the sign of the divisor Y."""
    zero = const(0)
    differ = fn("xor", fn("lt", remainder, zero), fn("lt", Y, zero))
    return fn(
        "select",
        fn("eq", remainder, zero),
        remainder,
        fn("select", differ, fn("add", remainder, Y), remainder),
    )


@importer("BitShift")
def bit_shift(call: Call) -> Node:
    """A shift by less than 0, or by the width or more, leaves 0 (or the sign, to the right)."""
    x, y = call.tensor(0), call.tensor(1)
    left = call.text("direction", "LEFT") == "LEFT"
    value = fn("ishl" if left else "ishr", X, Y)
    return map_elements(call, wrap(value, x.type.dtype), [x, y], x.type.dtype)


def clip_at_run_time(call: Call) -> Node:
    """Bounds that are computed, or of integers."""
    lower, upper = ("max", "min") if call.is_float(0) else ("imax", "imin")
    operands, value = [call.tensor(0)], X
    for position, name in ((1, lower), (2, upper)):
        if call.has(position):
            value = fn(name, value, arg(len(operands)))
            operands.append(call.tensor(position))
    return map_elements(call, value, operands, operands[0].type.dtype)


_COMPARISONS = {
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
}


@importer(*_COMPARISONS)
def comparison(call: Call) -> Node:
    operands = [call.tensor(0), call.tensor(1)]
    return map_elements(call, fn(_COMPARISONS[call.proto.op_type], X, Y), operands, DType.BOOL)


@importer("Not")
def negation(call: Call) -> Node:
    return map_elements(call, fn("not", X), [call.tensor(0)], DType.BOOL)


@importer("IsNaN")
def is_nan(call: Call) -> Node:
    return map_elements(call, fn("not", fn("eq", X, X)), [call.node(0)], DType.BOOL)


@importer("IsInf")
def is_infinite(call: Call) -> Node:
    """Only of the signs that are asked for."""
    positive, negative = call.integer("detect_positive", 1), call.integer("detect_negative", 1)
    tests = [fn("eq", X, const(np.inf))] if positive else []
    tests += [fn("eq", X, const(-np.inf))] if negative else []
    never = fn("lt", X, X)
    return map_elements(
        call, reduce(lambda a, b: fn("or", a, b), tests or [never]), [call.node(0)], DType.BOOL
    )


@importer("Where")
def where(call: Call) -> Node:
    condition, x, y = (call.tensor(i) for i in range(3))
    return Where(name=call.result, condition=condition, x=x, y=y)


@importer("Cast")
def cast_to(call: Call) -> Imported:
    return cast(call, call.integer("to", 0))


@importer("CastLike")
def cast_like(call: Call) -> Imported:
    return cast(call, value_onnx_type(call.value(1)))


def cast(call: Call, onnx_type: int) -> Imported:
    """Float to float is the identity: everything is computed in float32."""
    dtype = graph_dtype(onnx_type)
    if dtype is None:
        raise Unsupported(f"casts to {type_in_words(onnx_type)}, which is not computed")
    if call.is_known(0):
        return call.array(0, "operand").astype(onnx.helper.tensor_dtype_to_np_dtype(onnx_type))
    x = call.tensor(0)
    if x.type.dtype is dtype:
        return x
    return map_elements(call, convert(X, x.type.dtype, dtype), [x], dtype)


def convert(x: Expr, source: DType, dtype: DType) -> Expr:
    """Floats go towards zero and saturate (NaN gives 0), integers wrap, what is not 0 is true."""
    if dtype is DType.BOOL:
        return fn("not", fn("eq", x, constant_like(source, 0)))
    if dtype is DType.F32:
        return fn("float", x)
    if dtype is DType.I64:
        return fn("int64", x)
    value = x if dtype_kind(source) == "i" else fn("int32", x)
    if dtype is DType.I32 or not source.is_float:
        return wrap(value, dtype)
    low, high = dtype.limits
    return fn("imin", fn("imax", value, iconst(low)), iconst(high))
