"""Many expressions evaluated at once, and conditions tested."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quantglow.symbolic.expression import Expression
from quantglow.symbolic.straight_line import Lines, StraightLine


@dataclass
class Evaluation:
    """A list of distinct expressions."""

    _positions: dict[Expression, int] = field(default_factory=dict)

    def add(self, found: Expression) -> int:
        """The position of an expression among the results."""
        return self._positions.setdefault(found, len(self._positions))

    def program(self) -> StraightLine:
        """A program for the values of all expressions, in the order in which they were added
        first."""
        lines = Lines()
        return lines.program([lines.number(found) for found in self._positions])


def conditions(found: Iterable[tuple[Expression, str]]) -> StraightLine:
    """A program that tells whether all expressions compare with 0 as they should: ``(e, "<")``."""
    lines = Lines()
    for expression, relation in found:
        lines.condition(expression, relation)
    return lines.program()
