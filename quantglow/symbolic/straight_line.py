"""Straight-line programs: many sizes and conditions computed by lines of integer arithmetic.

They are text that can be stored and read back: symbols are ``s0``, ``s1``, …; line i defines ``vi``
or is a condition on what stands above it::

    s0*384 + 15
    v0 // 16
    max(v1, 2)
    v2 >= 0

Equal parts are computed once.  The lines become one Python function, so texts that are read are
checked against this grammar first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantglow.concise import Concise
from quantglow.lazy import cached_property
from quantglow.symbolic.expression import (
    Atom,
    Expression,
    Maximum,
    Monomial,
    Quotient,
    Symbol,
    Values,
)

_OPERAND = r"(?:[sv]\d+|-?\d+)"
_PRODUCT = rf"{_OPERAND}(?:\*{_OPERAND})*"
_LINE = re.compile(
    rf"{_PRODUCT}(?: \+ {_PRODUCT})*|{_OPERAND} // {_OPERAND}|max\({_OPERAND}, {_OPERAND}\)"
)
_CONDITION = re.compile(rf"{_OPERAND} (?:==|!=|<|>=) 0")
_NAME = re.compile(r"([sv])(\d+)")

Numbers = Sequence[int]


@dataclass(frozen=True, repr=False)
class StraightLine(Concise):
    """``results``: integers, and variables that have the others."""

    symbols: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[int | str, ...] = ()

    def at(self, values: Values) -> Numbers | None:
        """The results for values of the symbols; None where a condition does not hold."""
        return self._function(values)

    def always_at(self, values: Values) -> Numbers:
        """The results of a program without conditions."""
        found = self.at(values)
        assert found is not None, "a condition does not hold"
        return found

    @cached_property
    def _function(self) -> Callable[[Values], Numbers | None]:
        if not self.lines and all(type(result) is int for result in self.results):
            return lambda values: self.results  # type: ignore[return-value]
        body = [f"s{i} = values[{name!r}]" for i, name in enumerate(self.symbols)]
        body += [statement(i, line) for i, line in enumerate(self.lines)]
        returned = "".join(f"{result}, " for result in self.results)
        lines = ["def evaluate(values):", *body, f"return ({returned})"]
        names: dict[str, Callable[[Values], Numbers | None]] = {}
        exec("\n    ".join(lines), {"max": max}, names)
        return names["evaluate"]

    def check(self) -> None:
        """Raise ``ValueError`` for text that ``Lines`` never writes."""
        defined: set[int] = set()
        for number, line in enumerate(self.lines):
            is_condition = _CONDITION.fullmatch(line) is not None
            if not is_condition and not _LINE.fullmatch(line):
                raise ValueError(f"{line[:60]!r} is no line of a straight-line program")
            self._check_names(line, defined)
            if not is_condition:
                defined.add(number)
        for result in self.results:
            if type(result) is not int:
                if not re.fullmatch(_OPERAND, str(result)):
                    raise ValueError(f"{str(result)[:60]!r} is no result")
                self._check_names(str(result), defined)

    def _check_names(self, line: str, defined: set[int]) -> None:
        for kind, number in _NAME.findall(line):
            known = int(number) in defined if kind == "v" else int(number) < len(self.symbols)
            if not known:
                raise ValueError(f"{line[:60]!r} reads {kind}{number}, which is not above it")

    def to_json(self) -> list[Any]:
        """The parts in types that ``json`` writes."""
        return [list(self.symbols), list(self.lines), list(self.results)]

    @staticmethod
    def from_json(data: Any) -> StraightLine:
        """The checked program of ``to_json``'s result.  Raises ``TypeError`` or ``ValueError``."""
        symbols, lines, results = data
        kept = (result if type(result) is int else str(result) for result in results)
        found = StraightLine(tuple(map(str, symbols)), tuple(map(str, lines)), tuple(kept))
        found.check()
        return found


def statement(number: int, line: str) -> str:
    """The Python statement of a line."""
    if _CONDITION.fullmatch(line):
        return f"if not {line}: return None"
    return f"v{number} = {line}"


@dataclass
class Lines:
    """A straight-line program in the making."""

    symbols: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    known: dict[Atom | Expression, str] = field(default_factory=dict)

    def program(self, results: Iterable[int | str] = ()) -> StraightLine:
        """The program that returns some numbers and variables."""
        return StraightLine(tuple(self.symbols), tuple(self.lines), tuple(results))

    def number(self, found: Expression) -> int | str:
        """The number of a constant expression, the variable of another one."""
        return self.expression(found) if found.constant is None else found.constant

    def condition(self, found: Expression, relation: str) -> None:
        """Stop where an expression does not compare with 0 as it should."""
        self.lines.append(f"{self.expression(found)} {relation} 0")

    def expression(self, found: Expression) -> str:
        """The variable of an expression; constants are literals."""
        if found not in self.known:
            formula = " + ".join(self.term(*term) for term in found.terms) or "0"
            is_short = re.fullmatch(_OPERAND, formula) is not None
            self.known[found] = formula if is_short else self.variable(formula)
        return self.known[found]

    def term(self, monomial: Monomial, factor: int) -> str:
        """``v3*384``"""
        atoms = [self.atom(atom) for atom in monomial]
        return "*".join(atoms if atoms and factor == 1 else [*atoms, str(factor)])

    def atom(self, found: Atom) -> str:
        """The variable of an atom."""
        if found not in self.known:
            self.known[found] = self.formula(found)
        return self.known[found]

    def formula(self, found: Atom) -> str:
        """The variable of a new atom."""
        match found:
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
