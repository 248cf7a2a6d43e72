"""Vector code of a scalar expression (``ir.ops.expression``).

There is one instruction sequence for each step, in the order written, so that results equal NumPy's
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector import math_functions, trigonometry, vectors
from quantglow.codegen.llvm.kernels.vector.vectors import (
    divides_exactly,
    quotient,
    quotient_at_most,
)
from quantglow.codegen.llvm.values import (
    FLOAT,
    I1,
    I32,
    I64,
    Operand,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.ops.expression import Expr
from quantglow.ir.ops.functions import SELECT, dtype_kind
from quantglow.ir.ops.unary import SMALLEST_EXPONENT
from quantglow.ir.symbolic.size import is_free
from quantglow.ir.types import DType
from quantglow.support.classes import cached_property

LANE_TYPES = {"f": FLOAT, "i": I32, "l": I64, "b": I1}
"""The LLVM type in registers of each kind of value."""

_PLAIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv",
          "iadd": "add", "isub": "sub", "imul": "mul", "iand": "and", "ior": "or", "ixor": "xor",
          "and": "and", "or": "or", "xor": "xor"}  # fmt: skip
_EXTREMES = {"imax": "smax", "imin": "smin"}
_PREDICATES = {"eq": "eq", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
ROUNDINGS = {"floor": vectors.floor, "ceil": vectors.ceil, "rint": vectors.rint}
VECTOR_FUNCTIONS: dict[str, Callable[[Builder, int, Value], Value]] = {
    "exp": math_functions.exp,
    "logistic": math_functions.logistic,
    "expm1": math_functions.expm1,
    "expneg": math_functions.exp_negative,
    "log": math_functions.log,
    "log1p": math_functions.log1p,
    "ndtr": math_functions.ndtr,
    "tanh": math_functions.tanh,
    "tanhgate": math_functions.tanh_gate,
    "erf": math_functions.erf,
    "sqrt": math_functions.sqrt,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "atan": trigonometry.atan,
}

POLYNOMIALS = VECTOR_FUNCTIONS.keys() - {"sqrt"} | {"pow", "fmod"}
"""Functions of some tens of instructions."""


@dataclass
class Scalars:
    """Expressions on ``lanes`` elements at a time; equal subexpressions are computed once."""

    b: Builder
    target: Target
    lanes: int
    operands: Sequence[Value]
    dtypes: Sequence[DType]
    done: dict[Expr, Value] = field(default_factory=dict)

    @property
    def kind(self) -> Type:
        return vector(self.lanes, FLOAT)

    def value(self, expr: Expr) -> Value:
        """The lanes of an expression, of its kind."""
        value = self.done.get(expr)
        if value is None:
            value = self.done[expr] = self._compute(expr)
        return value

    def kind_of(self, expr: Expr) -> str:
        """``f``, ``i``, ``l`` or ``b``."""
        return expr.kind(self.operand_kinds)

    @cached_property
    def operand_kinds(self) -> tuple[str, ...]:
        """``kind_of`` of each operand."""
        return tuple(map(dtype_kind, self.dtypes))

    def expression_type(self, expr: Expr) -> Type:
        """The LLVM type of an expression's lanes."""
        return vector(self.lanes, LANE_TYPES[self.kind_of(expr)])

    def _compute(self, expr: Expr) -> Value:
        args = expr.args
        if not args:
            return self._leaf(expr)
        if (x := _logistic_argument(expr)) is not None:
            return self._function("logistic", x)
        if expr.op in _PLAIN:
            return self.b.op(_PLAIN[expr.op], self.expression_type(expr), *map(self.value, args))
        if expr.op in _PREDICATES:
            return self._compared(_PREDICATES[expr.op], *args)
        if expr.op in _EXTREMES:
            return self._extreme(_EXTREMES[expr.op], *args)
        if expr.op in ROUNDINGS:
            return ROUNDINGS[expr.op](self.b, self.target, self.lanes, self.value(args[0]))
        if expr.op in VECTOR_FUNCTIONS:
            return self._function(expr.op, args[0])
        return _RULES[expr.op](self, *args)

    def _function(self, name: str, x: Expr) -> Value:
        steps = VECTOR_FUNCTIONS
        if self.lanes == 1 and self.target.isa.branches:
            steps = steps | {"tanh": math_functions.tanh_by_branches}
            if _is_normal_power(x):
                steps |= {"logistic": math_functions.logistic_above}
        return self.target.isa.function(self.b, name, self.lanes, self.value(x), steps)

    def _leaf(self, expr: Expr) -> Value:
        if expr.op == "arg":
            return self.operands[int(expr.value)]
        if is_free(expr.value):
            return self.b.broadcast(self.lanes, I64, str(expr.value))
        literal = f32(float(expr.value)) if expr.op == "f" else str(int(expr.value))
        return splat(self.expression_type(expr), literal)

    def _compared(self, predicate: str, x: Expr, y: Expr) -> Value:
        """Ordered: false if either is NaN."""
        kind = self.kind_of(x)
        if kind == "f":
            predicate = f"o{predicate}"
        elif predicate != "eq":
            predicate = f"{'u' if kind == 'b' else 's'}{predicate}"
        return self.b.compare(predicate, self.expression_type(x), self.value(x), self.value(y))

    def _extreme(self, name: str, x: Expr, y: Expr) -> Value:
        kind = self.expression_type(x)
        suffix = vector(self.lanes, LANE_TYPES[self.kind_of(x)]).suffix
        return self.b.call(
            f"llvm.{name}.{suffix}", kind, (kind, self.value(x)), (kind, self.value(y))
        )

    def invert(self, x: Expr) -> Value:
        return self.b.op(
            "xor", self.expression_type(x), self.value(x), splat(self.expression_type(x), "true")
        )

    def negative(self, x: Expr) -> Value:
        return self.b.negate(self.value(x))

    def absolute(self, x: Expr) -> Value:
        return vectors.absolute(self.b, self.lanes, self.value(x))

    def to_float(self, x: Expr) -> Value:
        """Integers rounded half to even; true is 1."""
        if self.kind_of(x) == "f":
            return self.value(x)
        name = "uitofp" if self.kind_of(x) == "b" else "sitofp"
        return self.b.cast(name, self.expression_type(x), self.value(x), self.kind)

    def to_int32(self, x: Expr) -> Value:
        return self._to_integer(x, I32, "trunc")

    def to_int64(self, x: Expr) -> Value:
        return self._to_integer(x, I64, "sext")

    def _to_integer(self, x: Expr, element: Type, resize: str) -> Value:
        """Floats saturate, integers wrap, true is 1."""
        source, result, value = self.expression_type(x), vector(self.lanes, element), self.value(x)
        if source == result:
            return value
        if self.kind_of(x) == "f":
            floats = vector(self.lanes, FLOAT).suffix
            name = f"llvm.fptosi.sat.{vector(self.lanes, element).suffix}.{floats}"
            return self.b.call(name, result, (source, value))
        return self.b.cast("zext" if self.kind_of(x) == "b" else resize, source, value, result)

    def to_int(self, x: Expr) -> Value:
        """Towards zero; the quantizer's clipped ``rint`` becomes one conversion that rounds."""
        match x:
            case Expr(
                op="fmin",
                args=(
                    Expr(op="fmax", args=(Expr(op="rint", args=(steps,)), Expr(op="f") as low)),
                    Expr(op="f") as high,
                ),
            ) if _is_integer(low) and _is_integer(high):
                limits = (float(low.value), float(high.value))
                clipped = self._clipped(steps, limits)
                return self.target.isa.round_number(self.b, self.lanes, clipped)
        return self.b.cast("fptosi", self.kind, self.value(x), vector(self.lanes, I32))

    def _clipped(self, steps: Expr, limits: tuple[float, float]) -> Value:
        """Values that round as ``steps`` do within limits; division by a constant is cheap."""
        match steps:
            case Expr(op="div", args=(x, Expr(op="f", value=c))) if divides_exactly(
                self.target, float(c), limits
            ):
                return quotient(self.b, self.lanes, self.value(x), float(c), limits)
        return vectors.clip_float(self.b, self.lanes, self.value(steps), *limits)

    def at_most(self, steps: Expr, limit: float) -> Value:
        """Values that round as ``steps`` do, or to an integer limit if they are greater; NaN stays,
        and may stand for quotients that float32 does not hold."""
        match steps:
            case Expr(op="div", args=(x, Expr(op="f", value=c))) if divides_exactly(
                self.target, float(c), (limit, limit)
            ):
                return quotient_at_most(self.b, self.lanes, self.value(x), float(c), limit)
        return vectors.number_or_less(self.b, self.lanes, self.value(steps), limit)

    def maximum(self, x: Expr, y: Expr) -> Value:
        return self._propagating("olt", x, y)

    def minimum(self, x: Expr, y: Expr) -> Value:
        return self._propagating("ogt", x, y)

    def _propagating(self, predicate: str, x: Expr, y: Expr) -> Value:
        """y where x compares so with it, else x; NaN if either is NaN."""
        if x.op == "f":
            x, y = y, x
        b, kind = self.b, self.kind
        first, second = self.value(x), self.value(y)
        # A comparison with NaN is false, so the first is taken: right unless only the second is.
        best = b.select(kind, b.compare(predicate, kind, first, second), second, first)
        if y.op == "f":
            return best
        return b.select(kind, b.compare("uno", kind, second, second), second, best)

    def number_maximum(self, x: Expr, y: Expr) -> Value:
        return self._number("ogt", x, y)

    def number_minimum(self, x: Expr, y: Expr) -> Value:
        return self._number("olt", x, y)

    def _number(self, predicate: str, x: Expr, y: Expr) -> Value:
        """One of x, y; for NaN the other."""
        if x.op == "f":
            x, y = y, x
        b, kind = self.b, self.kind
        first, second = self.value(x), self.value(y)
        # A comparison with NaN is false, so the second is taken: right unless that is the NaN.
        best = b.select(kind, b.compare(predicate, kind, first, second), first, second)
        if y.op == "f":
            return best
        return b.select(kind, b.compare("uno", kind, second, second), first, best)

    def power(self, x: Expr, y: Expr) -> Value:
        exponent = float(y.value) if y.op == "f" else None
        if exponent is not None:
            return math_functions.power_constant(
                self.b, self.target, self.lanes, self.value(x), exponent
            )
        return math_functions.power(self.b, self.target, self.lanes, self.value(x), self.value(y))

    def select(self, condition: Expr, x: Expr, y: Expr) -> Value:
        return self.b.select(
            self.expression_type(x), self.value(condition), self.value(x), self.value(y)
        )

    def quotient(self, x: Expr, y: Expr) -> Value:
        """Towards zero; 0 where the divisor is 0."""
        kind, divisor = self.expression_type(x), self._safe_divisor(x, y)
        value = self.b.op("sdiv", kind, self.value(x), divisor)
        return self._unless_zero(y, value)

    def remainder(self, x: Expr, y: Expr) -> Value:
        """The remainder with the sign of x; 0 if the divisor is 0, which is taken for 1."""
        return self.b.op("srem", self.expression_type(x), self.value(x), self._safe_divisor(x, y))

    def modulo(self, x: Expr, y: Expr) -> Value:
        """The remainder with the sign of y: one divisor more where the signs differ."""
        b, kind, zero = self.b, self.expression_type(x), splat(self.expression_type(x), "0")
        remainder = self.remainder(x, y)
        moved = b.op("add", kind, remainder, self.value(y))
        differ = b.compare("slt", kind, b.op("xor", kind, remainder, self.value(y)), zero)
        value = b.select(kind, differ, moved, remainder)
        return b.select(kind, b.compare("eq", kind, remainder, zero), zero, value)

    def _safe_divisor(self, x: Expr, y: Expr) -> Value:
        """1 where the processor would trap: division by 0, and of the lowest integer by -1.

        The latter wraps to itself, as division by 1 does.
        """
        b, kind = self.b, self.expression_type(y)
        lowest = -(2 ** (63 if self.kind_of(y) == "l" else 31))
        one, divisor = splat(kind, "1"), self.value(y)
        safe = b.select(kind, b.compare("eq", kind, divisor, splat(kind, "0")), one, divisor)
        minus = b.compare("eq", kind, divisor, splat(kind, "-1"))
        least = b.compare("eq", kind, self.value(x), splat(kind, str(lowest)))
        both = b.op("and", vector(self.lanes, I1), minus, least)
        return b.select(kind, both, one, safe)

    def shift_left(self, x: Expr, y: Expr) -> Value:
        inside, amount = self._amount(y, "0")
        kind = self.expression_type(x)
        moved = self.b.op("shl", kind, self.value(x), amount)
        return self.b.select(kind, inside, moved, splat(kind, "0"))

    def shift_right(self, x: Expr, y: Expr) -> Value:
        most = "63" if self.kind_of(y) == "l" else "31"
        return self.b.op("ashr", self.expression_type(x), self.value(x), self._amount(y, most)[1])

    def _amount(self, y: Expr, otherwise: Operand) -> tuple[Value, Value]:
        """Whether a shift lies within the width, and the shift if so."""
        kind, width = self.expression_type(y), "64" if self.kind_of(y) == "l" else "32"
        inside = self.b.compare("ult", kind, self.value(y), splat(kind, width))
        return inside, self.b.select(kind, inside, self.value(y), splat(kind, otherwise))

    def _unless_zero(self, y: Expr, value: Value) -> Value:
        kind = self.expression_type(y)
        zero = splat(kind, "0")
        return self.b.select(kind, self.b.compare("eq", kind, self.value(y), zero), zero, value)

    def float_remainder(self, x: Expr, y: Expr) -> Value:
        return trigonometry.remainder(self.b, self.lanes, self.value(x), self.value(y))


def _logistic_argument(expr: Expr) -> Expr | None:
    """x of ``1 / (1 + exp(x))``; None for other expressions."""
    match expr:
        case Expr(
            op="div",
            args=(
                Expr(op="f", value=1.0),
                Expr(op="add", args=(Expr(op="f", value=1.0), Expr(op="exp", args=(x,)))),
            ),
        ):
            return x
    return None


def _is_normal_power(exponent: Expr) -> bool:
    """Whether ``e ** x`` of an exponent is never subnormal."""
    match exponent:
        case Expr(op="max", args=(_, Expr(op="f", value=low))):
            return bool(np.float32(low) >= np.float32(SMALLEST_EXPONENT))
    return False


def _is_integer(constant: Expr) -> bool:
    number = float(constant.value)
    return number.is_integer() and abs(number) < 2**31


_RULES: dict[str, Callable[..., Value]] = {
    "neg": Scalars.negative,
    "abs": Scalars.absolute,
    FLOAT: Scalars.to_float,
    "int": Scalars.to_int,
    "max": Scalars.maximum,
    "min": Scalars.minimum,
    "fmax": Scalars.number_maximum,
    "fmin": Scalars.number_minimum,
    "pow": Scalars.power,
    "not": Scalars.invert,
    "int32": Scalars.to_int32,
    "int64": Scalars.to_int64,
    "ishl": Scalars.shift_left,
    "ishr": Scalars.shift_right,
    "idiv": Scalars.quotient,
    "irem": Scalars.remainder,
    "imod": Scalars.modulo,
    "fmod": Scalars.float_remainder,
    SELECT: Scalars.select,
}
