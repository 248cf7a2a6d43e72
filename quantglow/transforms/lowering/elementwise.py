"""Lowering of element-wise operators to Elementwise and Table, and fusion of chains.

Functions of 8-bit tensors become a ``Table``.  An ``Elementwise`` absorbs its operands of the same
kind, so that values stay in registers.
"""

from __future__ import annotations

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    BatchNormalization,
    Binary,
    Dequantize,
    Elementwise,
    Mul,
    PRelu,
    Quantize,
    Rescale,
    RowMap,
    Table,
    Unary,
    Where,
)
from quantglow.ir.ops.arithmetic import integer_bounds, is_integer, multiplier
from quantglow.ir.ops.expression import (
    Expr,
    arg,
    call,
    center_float,
    clip,
    const,
    iconst,
    if_negative,
    quantize,
)
from quantglow.ir.symbolic.size import decide_equal
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType
from quantglow.transforms.lowering.rules import lowers, tag
from quantglow.transforms.rewrite import Uses, rewrite_pass

X = arg(0)
FLOAT = ElementType(DType.F32)

MAX_OPERATIONS = 64
"""Maximum number of operations in a fused expression; larger ones would spill registers."""


@lowers(Unary)
def lower_unary(node: Unary) -> Node:
    """f(x) -> Elementwise"""
    expression = node.expression().rounded()
    return Elementwise(name=node.name, args=(node.x,), expression=expression, out=FLOAT)


@lowers(Binary)
def lower_binary(node: Binary) -> Node:
    """f(x, y) -> Elementwise, in the steps of ``Binary.reference``"""
    if node.out is None:
        value = clip(node.expression(), node.low, node.high).rounded()
        return Elementwise(name=node.name, args=(node.x, node.y), expression=value, out=FLOAT)
    low, high = integer_bounds(node.out, node.low, node.high)
    args, steps = _product(node) if isinstance(node, Mul) else _steps(node)
    expression = quantize(steps, low, high, node.type.params.zero_point)
    return Elementwise(name=node.name, args=args, expression=expression, out=node.out)


def _steps(node: Binary) -> tuple[tuple[Node, ...], Expr]:
    """Both operands in output steps, then the function."""
    args, terms = [], []
    for index, operand in enumerate((node.x, node.y)):
        term, source = _operand_steps(node, operand, index)
        args.append(source)
        terms.append(term)
    return tuple(args), node.expression().rounded().substitute(terms)


def _operand_steps(node: Binary, operand: Node, index: int) -> tuple[Expr, Node]:
    step = node.type.params.scale
    if is_integer(operand.type):
        params = operand.type.params
        ratio = float(multiplier(params.scale, divisor=step))
        return call("mul", center_float(index, params.zero_point), const(ratio)), operand
    return arg(index), _constant_steps(node, operand, f"operand{index}", 1.0)


def _constant_steps(node: Node, operand: Node, role: str, factor: float) -> Node:
    """A float Constant operand, times ``factor``, in units of the node's output step."""
    assert isinstance(operand, Constant)  # by its type rule
    value = multiplier(operand.value, factor, divisor=node.type.params.scale)
    return Constant(name=tag(node, role), value=value)


def _product(node: Mul) -> tuple[tuple[Node, ...], Expr]:
    """The exact integer product times one multiplier, or the integer times a constant."""
    x, y = node.x, node.y
    step = node.type.params.scale
    if is_integer(x.type) and is_integer(y.type):
        ratio = float(multiplier(x.type.params.scale, y.type.params.scale, divisor=step))
        return (x, y), call("mul", _exact_product(x.type, y.type), const(ratio))
    integer, other = (x, y) if is_integer(x.type) else (y, x)
    params = integer.type.params
    factor = _constant_steps(node, other, "factor", params.scale)
    return (integer, factor), call("mul", center_float(0, params.zero_point), arg(1))


def _exact_product(x: TensorType, y: TensorType) -> Expr:
    """``float((x - zp) * (y - zp))``"""
    zero_points = (x.params.zero_point, y.params.zero_point)
    if x.dtype.nbytes == y.dtype.nbytes == 1:
        # Floats hold such products exactly, and multiply faster.
        return call("mul", *(center_float(i, zero) for i, zero in enumerate(zero_points)))
    centered = [call("isub", arg(i), iconst(zero)) for i, zero in enumerate(zero_points)]
    return call("float", call("imul", *centered))


@lowers(Where)
def lower_where(node: Where) -> Node:
    """condition ? x : y -> Elementwise"""
    value = call("select", arg(0), arg(1), arg(2))
    return Elementwise(name=node.name, args=node.operands, expression=value, out=node.type.element)


@lowers(PRelu)
def lower_prelu(node: PRelu) -> Node:
    """x < 0 ? x * slope : x -> Elementwise"""
    if node.out is None:
        expression = if_negative(X, call("mul", X, arg(1)), X)
        return Elementwise(
            name=node.name, args=(node.x, node.slope), expression=expression, out=FLOAT
        )
    params = node.x.type.params
    slope = _constant_steps(node, node.slope, "slope", params.scale)
    value = center_float(0, params.zero_point)
    positive = const(float(multiplier(params.scale, divisor=node.type.params.scale)))
    factor = if_negative(value, arg(1), positive)
    steps = call("mul", value, factor)
    expression = quantize(steps, *node.out.dtype.limits, node.type.params.zero_point)
    return Elementwise(name=node.name, args=(node.x, slope), expression=expression, out=node.out)


@lowers(BatchNormalization)
def lower_batch_normalization(node: BatchNormalization) -> Node:
    """(x - mean) / sqrt(var + eps) * gamma + beta -> Elementwise"""
    deviation = call("sqrt", call("add", arg(4), const(node.epsilon)))
    scale = call("div", arg(1), deviation)
    value = call("add", call("mul", call("sub", X, arg(3)), scale), arg(2))
    args = (node.x, node.gamma, node.beta, node.mean, node.var)
    return Elementwise(name=node.name, args=args, expression=value, out=FLOAT)


@lowers(Quantize)
def lower_quantize(node: Quantize) -> Node:
    """saturate(rint(x / scale) + zp) -> Elementwise"""
    params = node.type.params
    if params.axis is not None:
        return _quantize_per_axis(node, params)
    steps = X if params.scale == 1.0 else call("div", X, const(params.scale))
    expression = quantize(steps, *node.out.dtype.limits, params.zero_point)
    return Elementwise(name=node.name, args=(node.x,), expression=expression, out=node.out)


@lowers(Dequantize)
def lower_dequantize(node: Dequantize) -> Node:
    """(x - zp) * scale -> Elementwise"""
    params = node.x.type.params
    if params.axis is not None:
        value = call("mul", call("float", call("isub", X, arg(2))), arg(1))
        args = (node.x, *_per_axis(node, params, node.type.rank))
        return Elementwise(name=node.name, args=args, expression=value, out=FLOAT)
    value = call("mul", center_float(0, params.zero_point), const(params.scale))
    return Elementwise(name=node.name, args=(node.x,), expression=value, out=FLOAT)


def _quantize_per_axis(node: Quantize, params: QuantParams) -> Node:
    """saturate(rint(x / scales) + zps) -> Elementwise of x, scales and zero points"""
    steps = call("rint", call("div", X, arg(1)))
    low, high = (
        call("float", call("isub", iconst(limit), arg(2))) for limit in node.out.dtype.limits
    )
    clipped_steps = call("fmin", call("fmax", steps, low), high)
    expression = call("iadd", call("int", clipped_steps), arg(2))
    args = (node.x, *_per_axis(node, params, node.type.rank))
    return Elementwise(name=node.name, args=args, expression=expression, out=node.out)


def _per_axis(node: Node, params: QuantParams, rank: int) -> tuple[Constant, Constant]:
    """Scales and zero points as Constants that broadcast along the axis."""
    shape = tuple(-1 if i == params.axis else 1 for i in range(rank))
    scales = np.asarray(params.scales, np.float32).reshape(shape)
    zero_points = np.asarray(params.zero_points, np.int32).reshape(shape)
    return (
        Constant(name=tag(node, "scales"), value=scales),
        Constant(name=tag(node, "zero-points"), value=zero_points),
    )


@lowers(Rescale)
def lower_rescale(node: Rescale) -> Node:
    """Rescale -> Table for 8-bit operands, else Elementwise"""
    kind = node.x.type
    if kind.dtype in (DType.I8, DType.U8):
        codes = np.arange(256) + kind.dtype.limits[0]
        values = node.evaluate(codes.astype(kind.dtype.numpy))
        table = Constant(name=tag(node, "table"), value=values, element=node.out)
        return Table(name=node.name, x=node.x, table=table, out=node.out, function="Rescale")
    ratio = float(multiplier(kind.params.scale, divisor=node.type.params.scale))
    steps = call("mul", center_float(0, kind.params.zero_point), const(ratio))
    expression = quantize(steps, *node.out.dtype.limits, node.type.params.zero_point)
    return Elementwise(name=node.name, args=(node.x,), expression=expression, out=node.out)


@rewrite_pass("fuse-elementwise")
def fuse_elementwise(node: Node, uses: Uses) -> Node | None:
    """Elementwise(f, Elementwise(g, x), …) -> Elementwise(f∘g, x, …) if the inner value has one
    reader; one of them may be a RowMap"""
    if not isinstance(node, Elementwise | RowMap):
        return None
    for index, inner in enumerate(node.args):
        if isinstance(inner, Elementwise | RowMap) and uses.single(inner) and _fits(node, inner):
            return _absorb(node, index, inner)
    return None


def _fits(node: Elementwise | RowMap, inner: Elementwise | RowMap) -> bool:
    """Whether the inner value has the full shape: a broadcast would be computed again and again."""
    if isinstance(inner, RowMap) and not _may_hold_rows(node):
        return False
    if isinstance(node, RowMap) and _has_int64(inner):
        return False
    return (
        (inner.type.dtype in (DType.F32, DType.I32) or _is_saturated(inner.expression))
        and decide_equal(inner.type.shape, node.type.shape)
        and node.expression.size() + inner.expression.size() <= MAX_OPERATIONS
        and node.args.count(inner) == 1
    )


def _is_saturated(expression: Expr) -> bool:
    """Whether the integers of an expression fit their type: ``quantize`` has clipped them."""
    match expression:
        case Expr("iadd", (Expr("int", (Expr("fmin", (Expr("fmax"), _)),)), Expr("i"))):
            return True
    return False


def _may_hold_rows(node: Elementwise | RowMap) -> bool:
    """Whether sums of rows may be absorbed: sums of sums of rows would need pass after pass."""
    is_narrow = not _has_int64(node) and node.type.dtype is not DType.BOOL
    return isinstance(node, Elementwise) and is_narrow


def _has_int64(node: Elementwise | RowMap) -> bool:
    """Whether a tensor is int64, which a RowMap may not have."""
    return DType.I64 in (node.type.dtype, *(a.type.dtype for a in node.args))


def _absorb(
    node: Elementwise | RowMap, index: int, inner: Elementwise | RowMap
) -> Elementwise | RowMap:
    others = [a for i, a in enumerate(node.args) if i != index]
    args = list(dict.fromkeys([*others, *inner.args]))
    replacements: list[Expr] = [arg(args.index(a)) if a is not inner else arg(0) for a in node.args]
    replacements[index] = inner.expression.substitute([arg(args.index(a)) for a in inner.args])
    expression = node.expression.substitute(replacements)
    kind = RowMap if isinstance(inner, RowMap) else type(node)
    return kind(name=node.name, args=tuple(args), expression=expression, out=node.out)
