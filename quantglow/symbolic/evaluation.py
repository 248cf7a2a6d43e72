"""Many expressions evaluated at once, and conditions tested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from quantglow.symbolic.expression import Expression, Quotient, operands_of
from quantglow.symbolic.straight_line import Lines, StraightLine

Condition = tuple[Expression, str]
"""An expression, and how it compares with 0: ``(e, "<")``."""


@dataclass
class Evaluation:
    """A list of distinct expressions."""

    _positions: dict[Expression, int] = field(default_factory=dict)

    def add(self, found: Expression) -> int:
        """The position of an expression among the results."""
        return self._positions.setdefault(found, len(self._positions))

    def program(self, tested: Iterable[Condition] = ()) -> StraightLine:
        """A program for the values of all expressions, in the order in which they were added
        first, where all that is ``tested`` holds."""
        lines = Lines()
        for condition in tested:
            lines.condition(*condition)
        return lines.program([lines.number(found) for found in self._positions])

    def divisors(self) -> Iterator[Expression]:
        """The divisors that depend on symbols."""
        waiting = list(self._positions)
        visited = set(waiting)
        while waiting:
            atoms = {atom for monomial, _ in waiting.pop().terms for atom in monomial}
            for atom in atoms:
                if isinstance(atom, Quotient) and atom.divisor.constant is None:
                    yield atom.divisor
                inside = set(operands_of(atom)) - visited
                visited |= inside
                waiting += inside


def conditions(found: Iterable[Condition]) -> StraightLine:
    """A program that tells whether all expressions compare with 0 as they should."""
    return Evaluation().program(found)
