"""Many expressions evaluated at once, by one Python function that is made for them: equal parts are
computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantglow.symbolic.expression import (
    Atom,
    Expression,
    Maximum,
    Monomial,
    Quotient,
    Symbol,
    Values,
)


@dataclass
class Evaluation:
    """A list of distinct expressions; ``add`` before ``at``."""

    _positions: dict[Expression, int] = field(default_factory=dict)
    _function: Callable[[Values], Sequence[int]] | None = None

    def add(self, found: Expression) -> int:
        """The position of an expression among the results."""
        self._function = None
        return self._positions.setdefault(found, len(self._positions))

    def at(self, values: Values) -> Sequence[int]:
        """The values of all expressions, in the order in which they were added first."""
        if self._function is None:
            self._function = _compiled(list(self._positions))
        return self._function(values)


def _compiled(expressions: Iterable[Expression]) -> Callable[[Values], Sequence[int]]:
    code = _Code()
    results = [code.expression(found) for found in expressions]
    made: Callable[[Values], Sequence[int]] = code.function(
        f"({''.join(f'{r}, ' for r in results)})"
    )
    return made


def conjunction(conditions: Iterable[tuple[Expression, str]]) -> Callable[[Values], bool]:
    """A function that tells whether all expressions compare with 0 as they should: ``(e, "<")``."""
    code = _Code()
    for found, relation in conditions:
        code.lines.append(f"if not {code.expression(found)} {relation} 0: return False")
    made: Callable[[Values], bool] = code.function("True")
    return made


@dataclass
class _Code:
    lines: list[str] = field(default_factory=list)
    known: dict[Atom | Expression, str] = field(default_factory=dict)

    def expression(self, found: Expression) -> str:
        """The variable of an expression; constants are literals."""
        if found not in self.known:
            formula = " + ".join(self.term(*term) for term in found.terms) or "0"
            is_short = formula.isidentifier() or formula.isdigit()
            self.known[found] = formula if is_short else self.variable(formula)
        return self.known[found]

    def term(self, monomial: Monomial, factor: int) -> str:
        atoms = [self.atom(atom) for atom in monomial]
        return "*".join(atoms if atoms and factor == 1 else [*atoms, str(factor)])

    def atom(self, found: Atom) -> str:
        """The variable of an atom."""
        if found not in self.known:
            self.known[found] = self.variable(self.formula(found))
        return self.known[found]

    def formula(self, found: Atom) -> str:
        match found:
            case Symbol(name):
                return f"values[{name!r}]"
            case Quotient(numerator, divisor):
                return f"{self.expression(numerator)} // {self.expression(divisor)}"
            case Maximum(first, second):
                return f"max({self.expression(first)}, {self.expression(second)})"

    def function(self, result: str) -> Callable[[Values], Any]:
        """The function of the lines, which returns a formula of their variables."""
        lines = ["def evaluate(values):", *(f"    {line}" for line in self.lines)]
        names: dict[str, Callable[[Values], Any]] = {}
        exec("\n".join([*lines, f"    return {result}"]), {"max": max}, names)
        return names["evaluate"]

    def variable(self, formula: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {formula}")
        return name
