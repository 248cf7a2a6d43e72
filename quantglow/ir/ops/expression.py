"""Scalar expressions: the function that an ``Elementwise`` computes for each element.

Values are float32 (``f``), int32 (``i``), int64 (``l``) or bool (``b``).  Every step is one
operation, in the order written, so that NumPy and compiled code agree bit for bit (the
transcendental functions agree to float tolerance only; the quantizer never puts one in front of a
rounding).  No step is undefined: integers wrap, conversions from float saturate (NaN becomes 0),
and a division by zero gives 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.ir.graph.attributes import register
from quantglow.ir.ops.functions import (
    BINARY,
    ROW_FUNCTIONS,
    SELECT,
    UNARY,
    Function,
    kind_of_array,
    result_kind,
)
from quantglow.ir.symbolic.size import Dim, integer, is_free, symbols_in
from quantglow.ir.symbolic.text import size_text
from quantglow.support.arrays import Array
from quantglow.support.classes import Hashed, cached_property


@dataclass(frozen=True)
class Expr(Hashed):
    """``op`` applied to ``args``; leaves are ``arg`` (operand index) and ``f``/``i``/``l``
    constants."""

    op: str
    args: tuple[Expr, ...] = ()
    value: float | Dim = 0

    def evaluate(self, operands: Sequence[Array], real: type[np.floating] = np.float32) -> Any:
        """The value on broadcast operand arrays; integers of up to 32 bits are widened to int32.

        ``real``: the type of float operands, and of float constants.
        """
        if self.op == "arg":
            operand = operands[int(self.value)]
            return operand if operand.dtype == real else _widen(operand)
        if self.op in _LITERALS:
            return real(self.value) if self.op == "f" else _LITERALS[self.op](self.value)
        values = [a.evaluate(operands, real) for a in self.args]
        if self.op == SELECT:
            return np.where(*values)
        function = UNARY[self.op] if len(values) == 1 else BINARY[self.op]
        temporaries = [value for value, part in zip(values, self.args, strict=True) if part.args]
        return _apply(function, values, temporaries)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args, self.value))

    def kind(self, operands: tuple[str, ...]) -> str:
        """``f``, ``i``, ``l`` or ``b``, given the kinds of the operands.  Raises ``TypeError``."""
        if self.op == "arg":
            return operands[int(self.value)]
        if self.op in _LITERALS:
            return self.op
        kind = self._kinds.get(operands)
        if kind is None:
            arguments = tuple([a.kind(operands) for a in self.args])
            kind = self._kinds[operands] = result_kind(self.op, arguments)
        return kind

    @cached_property
    def _kinds(self) -> dict[tuple[str, ...], str]:
        """The kinds found so far, by those of the operands."""
        return {}

    def substitute(self, replacements: Sequence[Expr]) -> Expr:
        """The expression with ``arg i`` replaced by ``replacements[i]``."""
        if self.op == "arg":
            return replacements[int(self.value)]
        return Expr(self.op, tuple(a.substitute(replacements) for a in self.args), self.value)

    def rounded(self) -> Expr:
        """The expression with its constants rounded to float32, as every target computes it."""
        if self.op == "f":
            return const(float(self.value))
        if not self.args:
            return self
        return Expr(self.op, tuple(a.rounded() for a in self.args), self.value)

    @cached_property
    def with_numbers_apart(self) -> tuple[Expr, tuple[float, ...]]:
        """A function of ``$0`` whose float32 constants are operands ``$1``, ``$2``, …, and these:
        so functions that differ in constants only share their code.
        """
        numbers: list[float] = []

        def moved(part: Expr) -> Expr:
            if part.op == "f":
                numbers.append(float(part.value))
                return arg(len(numbers))
            return Expr(part.op, tuple(map(moved, part.args)), part.value)

        return moved(self.rounded()), tuple(numbers)

    def __add__(self, other: Expr | float) -> Expr:
        return Expr("add", (self, _operand(other)))

    def __sub__(self, other: Expr | float) -> Expr:
        return Expr("sub", (self, _operand(other)))

    def __rsub__(self, other: float) -> Expr:
        return Expr("sub", (_operand(other), self))

    def __mul__(self, other: Expr | float) -> Expr:
        return Expr("mul", (self, _operand(other)))

    def __truediv__(self, other: Expr | float) -> Expr:
        return Expr("div", (self, _operand(other)))

    def __neg__(self) -> Expr:
        return Expr("neg", (self,))

    def row_functions(self) -> tuple[Expr, ...]:
        """Its sums and maxima of rows, each once, those inside others first."""
        functions = dict.fromkeys(e for a in self.args for e in a.row_functions())
        return (*functions, self) if self.op in ROW_FUNCTIONS else tuple(functions)

    @property
    def has_free_sizes(self) -> bool:
        """Whether a literal depends on free dimensions."""
        return any(is_free(part.value) for part in self.parts())

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the free dimensions on which a literal depends."""
        return symbols_in(tuple(part.value for part in self.parts()))

    def parts(self) -> Iterator[Expr]:
        """The expression and all inside it."""
        yield self
        for part in self.args:
            yield from part.parts()

    def size(self) -> int:
        """Operations in the tree."""
        return sum(a.size() for a in self.args) + (1 if self.args else 0)

    def operand_count(self) -> int:
        """Number of operands that the expression needs: its largest ``arg`` index plus one."""
        count = int(self.value) + 1 if self.op == "arg" else 0
        return max(count, *(a.operand_count() for a in self.args), 0)

    def __str__(self) -> str:
        if self.op == "arg":
            return f"${self.value}"
        if self.op == "f":
            return f"{float(self.value)!r}"
        if self.op in _LITERALS:
            return f"{size_text(self.value)}{self.op}"
        return f"{self.op}({', '.join(map(str, self.args))})"


_LITERALS: dict[str, Callable[[Any], Any]] = {"f": np.float32, "i": np.int32, "l": np.int64}


def _apply(function: Function, values: Sequence[Any], temporaries: Sequence[Any]) -> Any:
    """The function of values; the result overwrites one of ``temporaries`` of the same shape.

    Large results in new memory would take twice as long.
    """
    if isinstance(function.compute, np.ufunc) and not function.signature.endswith(":b"):
        shape = np.broadcast_shapes(*map(np.shape, values))
        for buffer in temporaries:
            if isinstance(buffer, np.ndarray) and buffer.shape == shape:
                return function.compute(*values, out=buffer)
    return function.compute(*values)


def _widen(operand: Array) -> Array:
    return operand.astype(np.int32) if kind_of_array(operand) == "i" else operand


def _operand(value: Expr | float) -> Expr:
    return value if isinstance(value, Expr) else exact(value)


def arg(index: int) -> Expr:
    return Expr("arg", value=index)


def const(value: float) -> Expr:
    """A float32 constant."""
    return Expr("f", value=float(np.float32(value)))


def exact(value: float) -> Expr:
    """A real constant in full precision, until the expression is ``rounded``."""
    return Expr("f", value=float(value))


def iconst(value: int) -> Expr:
    """An int32 constant."""
    return Expr("i", value=int(value))


def lconst(value: Dim) -> Expr:
    """An int64 constant."""
    return Expr("l", value=integer(value))


def call(op: str, *args: Expr) -> Expr:
    return Expr(op, args)


def if_negative(condition: Expr, x: Expr, y: Expr) -> Expr:
    """``x`` where the float32 condition is below 0, else ``y``."""
    return call(SELECT, call("lt", condition, const(0)), x, y)


def clip(x: Expr, low: float, high: float) -> Expr:
    """``min(max(x, low), high)`` with exact bounds, without those that are infinite."""
    if low > -math.inf:
        x = call("max", x, exact(low))
    return call("min", x, exact(high)) if high < math.inf else x


def polynomial(x: Expr, *coefficients: float) -> Expr:
    """``c[0] + x (c[1] + x (…))`` with exact coefficients."""
    *lower, value = map(exact, coefficients)
    for coefficient in reversed(lower):
        value = coefficient + x * value
    return value


def quantize(steps: Expr, low: int, high: int, zero_point: int) -> Expr:
    """``int(fmin(fmax(rint(steps), low - zp), high - zp)) + zp``, as ``arithmetic.saturate``."""
    clipped = call("fmax", call("rint", steps), const(low - zero_point))
    clipped = call("fmin", clipped, const(high - zero_point))
    return call("iadd", call("int", clipped), iconst(zero_point))


def center_float(index: int, zero_point: int) -> Expr:
    """``float(arg - zero_point)``"""
    return call("float", call("isub", arg(index), iconst(zero_point)))


_TOKEN = re.compile(
    r"\s*(\$\d+|\{[^}]*\}l|-?\d+[il]|-?(?:inf|nan|\d[\d.]*(?:e[+-]?\d+)?)|[a-z_][a-z_0-9]*|[(),])"
)


def parse_expression(text: str, *sizes: int) -> Expr:
    """The expression that ``str`` wrote, with these sizes that are free.

    Raises ``ValueError`` on anything else.
    """
    symbols = {size_text(size): size for size in sizes}
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        tokens.append(match[1])
        end = match.end()
    if text[end:].strip():
        raise ValueError(f"unexpected {text[end : end + 20]!r} in an expression")
    supply = [*reversed(tokens)]
    try:
        expression = _parse(supply, symbols)
    except (IndexError, RecursionError):
        raise ValueError("the expression ends early, or is nested too deeply") from None
    if supply:
        raise ValueError(f"unexpected {supply[-1]!r} after the expression")
    return expression


def _parse(tokens: list[str], sizes: Mapping[str, int]) -> Expr:
    """One expression from the end of the reversed ``tokens``; ``sizes`` by their texts."""
    token = tokens.pop()
    if token.startswith("$"):
        return arg(int(token[1:]))
    if token.startswith("{"):
        if token[:-1] not in sizes:
            raise ValueError(f"the size {token[:-1]} is missing")
        return lconst(sizes[token[:-1]])
    if token.lstrip("-")[0].isdigit() or token.lstrip("-") in ("inf", "nan"):
        if token[-1] in "il":
            return _whole(token[-1], int(token[:-1]))
        return Expr("f", value=float(token))
    arity = 3 if token == SELECT else 1 if token in UNARY else 2 if token in BINARY else 0
    if not arity:
        raise ValueError(f"{token!r} is not a function of expressions")
    args = []
    for index in range(arity):
        if tokens.pop() != "(,"[index > 0]:
            raise ValueError(f"{token!r} takes {arity} arguments")
        args.append(_parse(tokens, sizes))
    if tokens.pop() != ")":
        raise ValueError(f"{token!r} takes {arity} arguments")
    return Expr(token, tuple(args))


def _whole(kind: str, value: int) -> Expr:
    """An integer constant.  Raises ``ValueError`` if its type does not have it."""
    bits = 32 if kind == "i" else 64
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"{value} is not a {bits}-bit integer")
    return Expr(kind, value=value)


def _encode(expr: Expr) -> tuple[object, ...]:
    free = {part.value for part in expr.parts() if is_free(part.value)}
    return (str(expr), *sorted(free, key=size_text))


register(Expr, _encode, parse_expression)
