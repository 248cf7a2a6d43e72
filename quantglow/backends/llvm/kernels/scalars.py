"""Vector code of a scalar expression (``quantglow.ops.expression``): one instruction sequence for
each step, in the order written, so that results equal NumPy's bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.kernels import mathfun, rounding, vectors
from quantglow.backends.llvm.target import Target
from quantglow.ops.expression import SELECT, Expr
from quantglow.types import DType

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {"iadd": "add", "isub": "sub", "imul": "mul"}
_VECTOR_FUNCTIONS: dict[str, Callable[[Builder, Target, int, Value], Value]] = {
    "floor": rounding.floor,
    "ceil": rounding.ceil,
    "rint": rounding.rint,
    "exp": mathfun.exp,
    "log": mathfun.log,
    "tanh": mathfun.tanh,
    "erf": mathfun.erf,
    "sqrt": mathfun.sqrt,
}


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
    def kind(self) -> str:
        return vector(self.lanes, "float")

    @property
    def int_kind(self) -> str:
        return vector(self.lanes, "i32")

    def value(self, expr: Expr) -> Value:
        """float32 or int32 lanes."""
        if expr not in self.done:
            self.done[expr] = self._compute(expr)
        return self.done[expr]

    def is_float(self, expr: Expr) -> bool:
        """Whether an expression is float32 (else int32)."""
        if expr.op == "arg":
            return self.dtypes[int(expr.value)].is_float
        if expr.op == SELECT:
            return self.is_float(expr.args[1])
        return expr.op not in ("i", "int", *_INT_OPS)

    def _compute(self, expr: Expr) -> Value:
        b, args = self.b, expr.args
        if not args:
            return self._leaf(expr)
        if expr.op in _FLOAT_OPS:
            return b.op(_FLOAT_OPS[expr.op], self.kind, *map(self.value, args))
        if expr.op in _INT_OPS:
            return b.op(_INT_OPS[expr.op], self.int_kind, *map(self.value, args))
        if expr.op in _VECTOR_FUNCTIONS:
            return _VECTOR_FUNCTIONS[expr.op](b, self.target, self.lanes, self.value(args[0]))
        return _RULES[expr.op](self, *args)

    def _leaf(self, expr: Expr) -> Value:
        if expr.op == "arg":
            return self.operands[int(expr.value)]
        if expr.op == "f":
            return splat(self.kind, f32(float(expr.value)))
        return splat(self.int_kind, str(int(expr.value)))

    def negative(self, x: Expr) -> Value:
        return self.b.emit(f"fneg {self.kind} {self.value(x)}")

    def absolute(self, x: Expr) -> Value:
        return vectors.absolute(self.b, self.lanes, self.value(x))

    def to_float(self, x: Expr) -> Value:
        return vectors.int_to_float(self.b, self.lanes, self.value(x))

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
                clipped = vectors.clip_float(self.b, self.lanes, self.value(steps), *limits)
                return vectors.round_to_int(self.b, self.target, self.lanes, clipped)
        return self.b.cast("fptosi", self.kind, self.value(x), self.int_kind)

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
            return mathfun.power_constant(self.b, self.target, self.lanes, self.value(x), exponent)
        return mathfun.power(self.b, self.target, self.lanes, self.value(x), self.value(y))

    def select_negative(self, condition: Expr, x: Expr, y: Expr) -> Value:
        b = self.b
        zero = splat(self.kind, f32(0.0))
        negative = b.compare("olt", self.kind, self.value(condition), zero)
        kind = self.kind if self.is_float(x) else self.int_kind
        return b.select(kind, negative, self.value(x), self.value(y))


def _is_integer(constant: Expr) -> bool:
    return float(constant.value).is_integer() and abs(constant.value) < 2**31


_RULES: dict[str, Callable[..., Value]] = {
    "neg": Scalars.negative,
    "abs": Scalars.absolute,
    "float": Scalars.to_float,
    "int": Scalars.to_int,
    "max": Scalars.maximum,
    "min": Scalars.minimum,
    "fmax": Scalars.number_maximum,
    "fmin": Scalars.number_minimum,
    "pow": Scalars.power,
    SELECT: Scalars.select_negative,
}
