"""Sizes and guards as text.  Texts that are read are not trusted.

``384*T+floor(H+1,2)-1``: integers, identifiers, ``+``, ``-``, ``*``, ``floor`` and ``max``.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quantglow.ir.symbolic.expression import Expression
from quantglow.ir.symbolic.guards import Guard, Relation
from quantglow.ir.symbolic.size import Dim, Size, decide, is_free, maximum, symbols, to_expression
from quantglow.support.processes.threads import run_undisturbed

RESERVED = {"floor", "max", "inf", "nan"}
"""Names in texts that are not symbols."""

MOST_VALUE = 2**63 - 1
"""Largest number of an expression."""
MOST_TERMS = 1024
"""Maximum number of terms of a product that is written out."""
MOST_FACTORS = 16
"""Maximum number of symbols in a product: an array has no more axes."""
USUAL = 8
"""Value of symbols of an expression that is read alone."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """An identifier for each of some distinct names, like it and unlike those of the others."""
    texts: dict[str, str] = {}
    for name in names:
        text = re.sub(r"[^0-9A-Za-z_]", "_", name)
        if not text.isidentifier() or keyword.iskeyword(text) or text in RESERVED:
            text = f"d_{text}"
        while text in texts.values():
            text += "_"
        texts[name] = text
    return texts


def size_from(tree: ast.expr, sizes: Mapping[str, Dim]) -> Dim:
    """The size of the syntax tree of an expression of some sizes.

    A text proves nothing: it is computed by the arithmetic of sizes, which proves the sign of each
    divisor or records it as a guard.  Raises ``ValueError``.
    """
    if not any(map(is_free, sizes.values())):
        raise ValueError(f"{ast.unparse(tree)[:60]!r} stands in a text without free dimensions")
    try:
        return _SizeReader(sizes).size(tree)
    except RecursionError:
        raise ValueError("an expression is nested too deeply") from None


@dataclass(frozen=True)
class _SizeReader:
    """Reads trees over some sizes."""

    sizes: Mapping[str, Dim]

    def size(self, tree: ast.expr) -> Dim:
        """The size of a tree."""
        match tree:
            case ast.Constant(value=int() as value) if type(value) is int:
                return _clamp(value)
            case ast.Name(id=name) if name in self.sizes:
                return self.sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.size(operand)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.size(left) + self.size(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self.size(left) - self.size(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if not _is_sum(right):
                return check(self.size(left) * self.size(right))
            case ast.Call(func=ast.Name(id="floor"), args=[numerator, divisor], keywords=[]):
                return quotient(self.size(numerator), self.size(divisor))
            case ast.Call(func=ast.Name(id="max"), args=[first, second], keywords=[]):
                return maximum((self.size(first), self.size(second)))
        raise ValueError(f"{ast.unparse(tree)[:60]!r} is not an expression of {sorted(self.sizes)}")


def _is_sum(tree: ast.expr) -> bool:
    """Whether a factor is a sum: products of sums are written out, and few would be huge."""
    return isinstance(tree, ast.BinOp)


def quotient(numerator: Dim, divisor: Dim) -> Dim:
    """The quotient rounded down.  Raises ``ValueError`` unless the divisor is positive at the
    hints."""
    if decide(divisor < 1):  # recorded as a guard where that cannot be proven
        raise ValueError(f"{numerator} is divided by {divisor}, which is not positive")
    return numerator // divisor


def _clamp(value: int) -> int:
    """A number of a text.  Raises ``ValueError`` for one that has too many digits."""
    if abs(value) > MOST_VALUE:
        raise ValueError("a number of an expression has more than 63 bits")
    return value


def check(product: Dim) -> Dim:
    """A product.  Raises ``ValueError`` for one that is larger than those of shapes."""
    terms = to_expression(product).terms
    is_large = len(terms) > MOST_TERMS or any(abs(c) > MOST_VALUE for _, c in terms)
    if is_large or any(len(monomial) > MOST_FACTORS for monomial, _ in terms):
        raise ValueError("a product of an expression is too large")
    return product


def parse_tree(text: str) -> ast.expr:
    """The syntax tree of a text.  Raises ``ValueError``."""
    try:
        return run_undisturbed(lambda: ast.parse(text, mode="eval")).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read {text[:60]!r}: {error}") from None


def read_expression(text: str, names: Iterable[str] | Mapping[str, int]) -> Expression:
    """The expression of a text over sizes, which take the guards of its divisors, or over names
    alone: then divisors must be positive where all symbols are ``USUAL``.  Raises ``ValueError``.
    """
    sizes = names if isinstance(names, Mapping) else symbols(dict.fromkeys(names, USUAL))[0]
    return to_expression(size_from(parse_tree(text), sizes))


def size_text(value: object) -> str:
    """``{384*T}`` for a size that is free; other values as they are."""
    return f"{{{value.expression}}}" if isinstance(value, Size) else str(value)


def guard_text(guard: Guard) -> str:
    """``H*W-8 >= 0``; ``read_guard`` reads it back."""
    return f"{guard.expression} {guard.relation} 0"


def read_guards(texts: Iterable[str], hints: Mapping[str, int]) -> tuple[Guard, ...]:
    """The guards of texts, in their order, each behind those that its divisors take.

    Raises ``ValueError``.
    """
    sizes, guards = symbols(hints)
    for text in texts:
        guards.record(_guard(text, sizes))
    return tuple(guards.recorded)


def _guard(text: str, sizes: Mapping[str, Dim]) -> Guard:
    expression, _, comparison = text.partition(" ")
    relation, _, zero = comparison.partition(" ")
    if zero != "0":
        raise ValueError(f"{text[:60]!r} is not a comparison with 0")
    return Guard(read_expression(expression, sizes), Relation(relation))
