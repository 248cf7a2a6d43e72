"""Scalar expressions: what a ``Map`` computes for each element.

Values are float32 (``f``) or int32 (``i``).  Every step is one IEEE operation, in the order
written, so that NumPy and compiled code agree bit for bit (the transcendental functions agree to
float tolerance only; the quantizer never puts one in front of a rounding).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.graph.attributes import register
from quantglow.ops import special
from quantglow.types import Array

UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": special.erf,
    "float": lambda i: i.astype(np.float32),
    "int": lambda f: f.astype(np.int32),
}
"""float32 functions, and the conversions int32 -> float32 (``float``) and back (``int``)."""

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "pow": np.power,
    "iadd": np.add,
    "isub": np.subtract,
    "imul": np.multiply,
}
"""float32 and (``i…``) int32 functions.  ``max``/``min`` propagate NaN; ``fmax``/``fmin`` return
the other operand."""

SELECT = "select_negative"
"""``select_negative(c, a, b)``: a where c < 0, else b; c is float32."""


@dataclass(frozen=True)
class Expr:
    """``op`` applied to ``args``; leaves are ``arg`` (operand index) and ``f``/``i`` constants."""

    op: str
    args: tuple[Expr, ...] = ()
    value: float | int = 0

    def evaluate(self, operands: Sequence[Array]) -> Any:
        """The value on broadcast operand arrays (float32, or integers widened to int32)."""
        if self.op == "arg":
            operand = operands[int(self.value)]
            return operand if operand.dtype == np.float32 else operand.astype(np.int32)
        if self.op == "f":
            return np.float32(self.value)
        if self.op == "i":
            return np.int32(self.value)
        values = [a.evaluate(operands) for a in self.args]
        if self.op == SELECT:
            return np.where(values[0] < 0, values[1], values[2])
        if len(values) == 1:
            return UNARY[self.op](values[0])
        return BINARY[self.op](*values)

    def substitute(self, replacements: Sequence[Expr]) -> Expr:
        """The expression with ``arg i`` replaced by ``replacements[i]``."""
        if self.op == "arg":
            return replacements[int(self.value)]
        return Expr(self.op, tuple(a.substitute(replacements) for a in self.args), self.value)

    def size(self) -> int:
        """Operations in the tree."""
        return sum(a.size() for a in self.args) + (1 if self.args else 0)

    def operand_count(self) -> int:
        """How many operands the expression needs: its largest ``arg`` index plus one."""
        own = int(self.value) + 1 if self.op == "arg" else 0
        return max(own, *(a.operand_count() for a in self.args), 0)

    def __str__(self) -> str:
        if self.op == "arg":
            return f"${self.value}"
        if self.op in ("f", "i"):
            return f"{float(self.value)!r}" if self.op == "f" else f"{self.value}i"
        return f"{self.op}({', '.join(map(str, self.args))})"


def arg(index: int) -> Expr:
    return Expr("arg", value=index)


def const(value: float) -> Expr:
    """A float32 constant."""
    return Expr("f", value=float(np.float32(value)))


def iconst(value: int) -> Expr:
    """An int32 constant."""
    return Expr("i", value=int(value))


def call(op: str, *args: Expr) -> Expr:
    return Expr(op, args)


def quantized(steps: Expr, low: int, high: int, zero_point: int) -> Expr:
    """``int(fmin(fmax(rint(steps), low - zp), high - zp)) + zp``, as ``arithmetic.saturate``."""
    clipped = call("fmax", call("rint", steps), const(low - zero_point))
    clipped = call("fmin", clipped, const(high - zero_point))
    return call("iadd", call("int", clipped), iconst(zero_point))


def centred_float(index: int, zero_point: int) -> Expr:
    """``float(arg - zero_point)``"""
    return call("float", call("isub", arg(index), iconst(zero_point)))


_TOKEN = re.compile(r"\s*(\$\d+|-?\d+i|-?(?:inf|nan|\d[\d.]*(?:e[+-]?\d+)?)|[a-z_]+|[(),])")


def parse_expression(text: str) -> Expr:
    """The expression that ``str`` wrote.  Raises ``ValueError`` on anything else."""
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        tokens.append(match[1])
        end = match.end()
    if text[end:].strip():
        raise ValueError(f"unexpected {text[end : end + 20]!r} in an expression")
    supply = [*reversed(tokens)]
    try:
        made = _parse(supply)
    except (IndexError, RecursionError):
        raise ValueError("the expression ends early, or is nested too deeply") from None
    if supply:
        raise ValueError(f"unexpected {supply[-1]!r} after the expression")
    return made


def _parse(tokens: list[str]) -> Expr:
    """One expression from the end of the reversed ``tokens``."""
    token = tokens.pop()
    if token.startswith("$"):
        return arg(int(token[1:]))
    if token.lstrip("-")[0].isdigit() or token.lstrip("-") in ("inf", "nan"):
        return iconst(int(token[:-1])) if token.endswith("i") else Expr("f", value=float(token))
    arity = 3 if token == SELECT else 1 if token in UNARY else 2 if token in BINARY else 0
    if not arity:
        raise ValueError(f"{token!r} is not a function of expressions")
    args = []
    for index in range(arity):
        if tokens.pop() != "(,"[index > 0]:
            raise ValueError(f"{token!r} takes {arity} arguments")
        args.append(_parse(tokens))
    if tokens.pop() != ")":
        raise ValueError(f"{token!r} takes {arity} arguments")
    return Expr(token, tuple(args))


register(Expr, lambda e: (str(e),), parse_expression)
