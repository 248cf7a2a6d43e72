"""Sizes and guards as text.  Texts that are read are not trusted.

``384*T+floor(H+1,2)-1``: integers, identifiers, ``+``, ``-``, ``*``, ``floor`` and ``max``.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterable, Mapping

from quantglow.processes.parsing import undisturbed
from quantglow.symbolic.expression import Expression, number, symbol
from quantglow.symbolic.guards import Guard, Relation
from quantglow.symbolic.size import Size, sized

RESERVED = {"floor", "max", "inf", "nan"}
"""Names in texts that are no symbols."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """An identifier for each of some distinct names, like it and unlike those of the others."""
    found: dict[str, str] = {}
    for name in names:
        text = re.sub(r"[^0-9A-Za-z_]", "_", name)
        if not text.isidentifier() or keyword.iskeyword(text) or text in RESERVED:
            text = f"d_{text}"
        while text in found.values():
            text += "_"
        found[name] = text
    return found


def expression_from(tree: ast.expr, names: Collection[str]) -> Expression:
    """The expression of a syntax tree over symbols of these names.  Raises ``ValueError``."""
    match tree:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return number(value)
        case ast.Name(id=name) if name in names:
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -expression_from(operand, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return expression_from(left, names) + expression_from(right, names)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return expression_from(left, names) - expression_from(right, names)
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if not is_sum(right):
            return expression_from(left, names) * expression_from(right, names)
        case ast.Call(func=ast.Name(id="floor"), args=[numerator, divisor], keywords=[]):
            return _quotient(expression_from(numerator, names), expression_from(divisor, names))
        case ast.Call(func=ast.Name(id="max"), args=[first, second], keywords=[]):
            return expression_from(first, names).maximum(expression_from(second, names))
    raise ValueError(f"{ast.unparse(tree)[:60]!r} is not an expression of {sorted(names)}")


def is_sum(tree: ast.expr) -> bool:
    """Whether a factor is a sum: products of sums are written out, and few would be huge."""
    return isinstance(tree, ast.BinOp)


def _quotient(numerator: Expression, divisor: Expression) -> Expression:
    if divisor.constant == 0:
        raise ValueError(f"{numerator} is divided by 0")
    return numerator // divisor


def tree_of(text: str) -> ast.expr:
    """The syntax tree of a text.  Raises ``ValueError``."""
    try:
        return undisturbed(lambda: ast.parse(text, mode="eval")).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read {text[:60]!r}: {error}") from None


def read_expression(text: str, names: Collection[str]) -> Expression:
    """The expression of a text.  Raises ``ValueError``."""
    return expression_from(tree_of(text), names)


def size_text(value: object) -> str:
    """``{384*T}`` for a size that is free; other values as they are."""
    return f"{{{value.expression}}}" if isinstance(value, Size) else str(value)


def size_from(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    """The size of the tree of an expression over some symbols.  Raises ``ValueError``."""
    found = expression_from(tree, sizes)
    for size in sizes.values():
        if isinstance(size, Size):
            return sized(found, size.guards)
    raise ValueError(f"{found} stands in a text without free dimensions")


def guard_text(guard: Guard) -> str:
    """``H*W-8 >= 0``; ``read_guard`` reads it back."""
    return f"{guard.expression} {guard.relation} 0"


def read_guard(text: str, names: Collection[str]) -> Guard:
    """The guard of a text.  Raises ``ValueError``."""
    expression, _, rest = text.partition(" ")
    relation, _, zero = rest.partition(" ")
    if zero != "0":
        raise ValueError(f"{text[:60]!r} is not a comparison with 0")
    return Guard(read_expression(expression, names), Relation(relation))
