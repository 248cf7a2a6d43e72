"""Straight-line programs: many sizes and conditions evaluated by lines of integer arithmetic.

A program is text that can be stored and read back: symbols are ``s0``, ``s1``, …; line i defines
``vi`` or is a condition on what stands above it::

    s0*384 + 15
    v0 // 16
    max(v1, 2)
    v2 >= 0

Equal parts are computed once.  The lines become one Python function.  Text that is read is not:
each line is read as numbers, and written anew from these (``_CodeReader``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantglow.ir.symbolic.expression import (
    Atom,
    Expression,
    Maximum,
    Monomial,
    Quotient,
    Symbol,
    Values,
    atom_operands,
)
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import FileFormatError

_OPERAND = r"(?:[sv](?:0|[1-9][0-9]{0,6})|-?[1-9][0-9]{0,18}|0)"
_PRODUCT = rf"{_OPERAND}(?:\*{_OPERAND})*"
_SUM = re.compile(rf"{_PRODUCT}(?: \+ {_PRODUCT})*")
_QUOTIENT = re.compile(rf"({_OPERAND}) // ({_OPERAND})")
_MAXIMUM = re.compile(rf"max\(({_OPERAND}), ({_OPERAND})\)")
_CONDITION = re.compile(rf"({_OPERAND}) (==|!=|<|>=) 0")
_TESTS = (" == 0", " != 0", " < 0", " >= 0")

MOST_LINES = 2**17
"""Maximum number of lines, and of results, of a program that is read."""
MOST_LINE = 2**14
"""Maximum number of characters of such a line."""
MOST_FACTORS = 64
"""Maximum number of factors of a product in it."""
SYMBOL_BITS = 25
"""Bits of the value of a symbol."""
MOST_BITS = 2**12
"""Maximum number of bits of a value in it: to square a number again and again takes few lines."""

Numbers = Sequence[int]

Condition = tuple[Expression, str]
"""An expression, and how it compares with 0: ``(e, "<")``."""


@dataclass(frozen=True, repr=False)
class StraightLine(Concise):
    """``results``: integers, and variables that have the others."""

    symbols: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[int | str, ...] = ()

    def at(self, values: Values) -> Numbers | None:
        """The results for values of the symbols; None where a condition does not hold, or a divisor
        is 0."""
        try:
            return self._function([values[name] for name in self.symbols])
        except ZeroDivisionError:
            return None

    def always_at(self, values: Values) -> Numbers:
        """The results of a program without conditions.  Raises ``FileFormatError`` for one of an
        altered file, which divides by 0."""
        numbers = self.at(values)
        if numbers is None:
            raise FileFormatError("a size of a program is divided by 0. Remedy: save it again.")
        return numbers

    @cached_property
    def _function(self) -> Callable[[Sequence[int]], Numbers | None]:
        if not self.lines and all(type(result) is int for result in self.results):
            return lambda values: self.results  # type: ignore[return-value]
        body = [f"s{i} = values[{i}]" for i in range(len(self.symbols))]
        body += [_statement(i, line) for i, line in enumerate(self.lines)]
        returned = "".join(f"{result}, " for result in self.results)
        lines = ["def evaluate(values):", *body, f"return ({returned})"]
        names: dict[str, Callable[[Sequence[int]], Numbers | None]] = {}
        exec("\n    ".join(lines), {"max": max}, names)
        return names["evaluate"]

    def to_json(self) -> list[Any]:
        """The parts in types that ``json`` writes."""
        return [list(self.symbols), list(self.lines), list(self.results)]

    @staticmethod
    def from_json(data: Any) -> StraightLine:
        """The program of ``to_json``'s result.  Raises ``TypeError`` or ``ValueError`` for one that
        ``Lines`` never writes."""
        symbols, lines, results = data
        names = tuple(map(str, symbols))
        if max(len(names), len(lines), len(results)) > MOST_LINES:
            raise ValueError(f"a straight-line program of more than {MOST_LINES} lines")
        reader = _CodeReader({f"s{i}": (f"s{i}", SYMBOL_BITS) for i in range(len(names))})
        written = tuple([reader.line(line) for line in lines])
        return StraightLine(names, written, tuple([reader.result(r) for r in results]))


@dataclass
class _CodeReader:
    """Lines that are read: as numbers, from which they are written anew.

    ``known``: by its text each name that may be read, as it is written, and the bits of its values;
    ``count``: the lines above.  The methods raise ``ValueError``.
    """

    variables: dict[str, tuple[str, int]]
    count: int = 0

    def line(self, line: object) -> str:
        """The text of the next line."""
        if type(line) is not str or len(line) > MOST_LINE:
            raise ValueError(f"{str(line)[:60]!r} is no line of a straight-line program")
        if match := _CONDITION.fullmatch(line):
            text, _ = self.operand(match[1])
            self.count += 1
            return f"{text} {match[2]} 0"
        if match := _QUOTIENT.fullmatch(line):
            (one, bits), (other, _) = map(self.operand, match.groups())
            return self.define(f"{one} // {other}", bits + 1)
        if match := _MAXIMUM.fullmatch(line):
            (one, bits), (other, others) = map(self.operand, match.groups())
            return self.define(f"max({one}, {other})", max(bits, others))
        if _SUM.fullmatch(line):
            texts, sizes = zip(*map(self.product, line.split(" + ")), strict=True)
            return self.define(" + ".join(texts), max(sizes) + len(sizes).bit_length())
        raise ValueError(f"{line[:60]!r} is no line of a straight-line program")

    def define(self, text: str, bits: int) -> str:
        """The text of a line that defines a variable."""
        if bits > MOST_BITS:
            raise ValueError(f"{text[:60]!r} has values of {bits} bits")
        name = f"v{self.count}"
        self.variables[name] = name, bits
        self.count += 1
        return text

    def product(self, text: str) -> tuple[str, int]:
        """The text of a product, and the bits of its values."""
        factors = text.split("*")
        if len(factors) > MOST_FACTORS:
            raise ValueError(f"{text[:60]!r} has {len(factors)} factors")
        texts, bits = zip(*map(self.operand, factors), strict=True)
        return "*".join(texts), sum(bits)

    def operand(self, text: str) -> tuple[str, int]:
        """The text of a number or a name, and the bits of its values."""
        if text[0] not in "sv":
            value = int(text)
            return str(value), value.bit_length()
        if text not in self.variables:
            raise ValueError(f"{text} is read and not above")
        return self.variables[text]

    def result(self, result: object) -> int | str:
        """A number, or the name of one."""
        if type(result) is int and result.bit_length() <= MOST_BITS:
            return result
        if type(result) is not str or result not in self.variables:
            raise ValueError(f"{str(result)[:60]!r} is no result")
        return self.variables[result][0]


def _statement(number: int, line: str) -> str:
    """The Python statement of a line."""
    return f"if not {line}: return None" if line.endswith(_TESTS) else f"v{number} = {line}"


@dataclass
class Lines:
    """A straight-line program in the making."""

    symbols: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    variables: dict[Atom | Expression, str] = field(default_factory=dict)

    def program(self, results: Iterable[int | str] = ()) -> StraightLine:
        """The program that returns some numbers and variables."""
        return StraightLine(tuple(self.symbols), tuple(self.lines), tuple(results))

    def number(self, expression: Expression) -> int | str:
        """The number of a constant expression, the variable of another one."""
        return self.expression(expression) if expression.constant is None else expression.constant

    def condition(self, expression: Expression, relation: str) -> None:
        """Stop where an expression does not compare with 0 as it should."""
        self.lines.append(f"{self.expression(expression)} {relation} 0")

    def expression(self, expression: Expression) -> str:
        """The variable of an expression; constants are literals."""
        if expression not in self.variables:
            formula = " + ".join(self.term(*term) for term in expression.terms) or "0"
            is_short = re.fullmatch(_OPERAND, formula) is not None
            self.variables[expression] = formula if is_short else self.variable(formula)
        return self.variables[expression]

    def term(self, monomial: Monomial, factor: int) -> str:
        """``v3*384``"""
        atoms = [self.atom(atom) for atom in monomial]
        return "*".join(atoms if atoms and factor == 1 else [*atoms, str(factor)])

    def atom(self, atom: Atom) -> str:
        """The variable of an atom."""
        if atom not in self.variables:
            self.variables[atom] = self.formula(atom)
        return self.variables[atom]

    def formula(self, atom: Atom) -> str:
        """The variable of a new atom."""
        match atom:
            case Symbol(name):
                return self.symbols.setdefault(name, f"s{len(self.symbols)}")
            case Quotient(numerator, divisor):
                parts = (self.expression(numerator), self.expression(divisor))
                return self.variable(" // ".join(parts))
            case Maximum(first, second):
                parts = (self.expression(first), self.expression(second))
                return self.variable(f"max({', '.join(parts)})")

    def variable(self, formula: str) -> str:
        """A new line; the variable that it defines."""
        self.lines.append(formula)
        return f"v{len(self.lines) - 1}"


@dataclass
class Evaluation:
    """A list of distinct expressions."""

    _positions: dict[Expression, int] = field(default_factory=dict)

    def add(self, expression: Expression) -> int:
        """The position of an expression among the results."""
        return self._positions.setdefault(expression, len(self._positions))

    def program(self, tested: Iterable[Condition] = ()) -> StraightLine:
        """A program for the values of all expressions, in the order in which they were added
        first, where all that is ``tested`` holds."""
        lines = Lines()
        for condition in tested:
            lines.condition(*condition)
        return lines.program([lines.number(expression) for expression in self._positions])

    def divisors(self) -> Iterator[Expression]:
        """The divisors that depend on symbols."""
        waiting = list(self._positions)
        visited = set(waiting)
        while waiting:
            atoms = {atom for monomial, _ in waiting.pop().terms for atom in monomial}
            for atom in atoms:
                if isinstance(atom, Quotient) and atom.divisor.constant is None:
                    yield atom.divisor
                inside = set(atom_operands(atom)) - visited
                visited |= inside
                waiting += inside


def conditions(comparisons: Iterable[Condition]) -> StraightLine:
    """A program that tells whether all expressions compare with 0 as they should."""
    return Evaluation().program(comparisons)
