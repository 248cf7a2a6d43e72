"""The activation of a contraction, on float32 sums in registers."""

from __future__ import annotations

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.vector.scalars import Scalars
from quantglow.ops import Conv
from quantglow.ops.expression import Expr
from quantglow.ops.unary import X
from quantglow.types import DType


def activated(b: Builder, target: Target, op: Conv, sums: Value) -> Value:
    """The activation of ``op`` on a vector of sums, in output steps (or reals)."""
    assert op.activation is not None
    expression = op.activation.expression(None if op.out is None else op.type.params.scale)
    scalars = Scalars(b, target, target.f32_lanes, [sums], [DType.F32])
    if near := limited_factor(expression):
        bound = splat(vector(target.f32_lanes, "float"), f32(near.args[1].value))
        if limited := target.isa.nearest_within(b, sums, bound):
            scalars.done[near] = limited
    return scalars.value(expression)


def limited_factor(expr: Expr) -> Expr | None:
    """``min(max($0, -c), c)`` within a factor of a product with ``$0``.  There it may be c for NaN:
    the product is NaN anyway."""
    if expr.op == "mul" and expr.args[0] == X:
        return next(filter(_is_symmetric, expr.args[1].parts()), None)
    return next(filter(None, map(limited_factor, expr.args)), None)


def _is_symmetric(expr: Expr) -> bool:
    match expr:
        case Expr("min", (Expr("max", (x, Expr("f", value=low))), Expr("f", value=high))):
            return x == X and low == -high
    return False
