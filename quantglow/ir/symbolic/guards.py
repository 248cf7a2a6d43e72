"""Guards: the conditions on free dimensions that hold wherever a program is used.

Code is made for one shape, the *hint*, with symbols for its free dimensions.  Where a decision
depends on a symbol and cannot be proven for all its values, the hint decides and the answer is
recorded: the result is right for every shape at which each guard has the same answer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from quantglow.ir.symbolic.expression import (
    LARGEST,
    SMALLEST,
    Bounds,
    Expression,
    Values,
    number,
    parts,
    scale,
    symbol,
)
from quantglow.ir.symbolic.straight_line import StraightLine, conditions
from quantglow.support.classes import Concise, cached_property

MOST_ANSWERS = 16
"""Shapes for which a program keeps whether its guards hold."""


class Relation(StrEnum):
    """Relation of an expression to 0."""

    EQUAL = "=="
    UNEQUAL = "!="
    LESS = "<"
    NOT_LESS = ">="

    __hash__ = str.__hash__  # that of enumerations is many times as slow

    def holds(self, value: int) -> bool:
        """Whether a value stands in this relation to 0."""
        match self:
            case Relation.EQUAL:
                return value == 0
            case Relation.UNEQUAL:
                return value != 0
            case Relation.LESS:
                return value < 0
            case Relation.NOT_LESS:
                return value >= 0

    @property
    def opposite(self) -> Relation:
        """The relation that holds where this one does not."""
        return _OPPOSITE[self]


_OPPOSITE = {
    Relation.EQUAL: Relation.UNEQUAL,
    Relation.UNEQUAL: Relation.EQUAL,
    Relation.LESS: Relation.NOT_LESS,
    Relation.NOT_LESS: Relation.LESS,
}


@dataclass(frozen=True)
class Guard:
    """``expression`` compares with 0 as ``relation`` says."""

    expression: Expression
    relation: Relation

    def holds(self, values: Values) -> bool:
        """Whether it holds for values of the symbols, where no divisor in it is 0: divisors are
        proven for sizes from 2 on, and a piece of a batch may be one sample."""
        try:
            return self.relation.holds(self.expression.at(values))
        except ZeroDivisionError:
            return False

    @property
    def is_limit(self) -> bool:
        """Whether it keeps a size below a number that no dimension reaches alone."""
        return parts(self.expression)[2] > LARGEST

    def __str__(self) -> str:
        """``H*W >= 8``: terms stand on the side on which they are positive."""
        terms = self.expression.terms
        left = Expression(tuple((m, c) for m, c in terms if c > 0))
        right = Expression(tuple((m, -c) for m, c in terms if c < 0))
        return f"{left} {self.relation} {right}"


Facts = tuple[dict[Any, Any], ...]
"""Guards, answers and bounds."""


@dataclass(frozen=True)
class Snapshot:
    """The hints of a program, and what was decided with them."""

    hints: Mapping[str, int]
    facts: Facts


@dataclass(repr=False)
class Guards(Concise):
    """The guards of one program, by the first place in the code that needed each.

    ``hints``: the value of each symbol that decides.  ``guesses``: the hints of symbols whose
    values nobody knows yet; ``revised``: those of them that the first guess did not suit.
    ``names``: expressions by the text that stands for them in code.  ``caution``: halvings of
    sizes for which tiles are chosen.

    ``askers``: where it is not None, the nodes of the model whose import asked for each guard,
    ``asker`` being the present one.  ``atomic``: nodes that are to be imported as they are.
    """

    hints: Mapping[str, int]
    guesses: dict[str, int] = field(default_factory=dict)
    revised: set[str] = field(default_factory=set)
    recorded: dict[Guard, str] = field(default_factory=dict)
    names: dict[str, Expression] = field(default_factory=dict)
    caution: int = 0
    is_closed: bool = False
    askers: dict[Guard, set[str]] | None = None
    asker: str = ""
    atomic: frozenset[str] = frozenset()
    _decided: dict[tuple[Expression, Relation], bool] = field(default_factory=dict)
    _likely: dict[Expression, int] = field(default_factory=dict)
    _bounds: dict[Expression, Bounds] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decide(self, expression: Expression, relation: Relation) -> bool:
        """Whether a relation to 0 holds: proven, or at the hints and then recorded."""
        question = expression, relation
        answer = self._decided.get(question)
        if answer is None:
            answer = self._decided[question] = self._answer(expression, relation)
        elif self.askers is not None:
            self._note(Guard(expression, relation if answer else relation.opposite))
        return answer

    def _note(self, guard: Guard) -> None:
        """Note the present node as one that asked for a guard."""
        if self.asker and self.askers is not None and guard in self.recorded:
            self.askers.setdefault(guard, set()).add(self.asker)

    def add_symbol(self, name: str, hint: int) -> str:
        """Add a symbol: a size that became one after the others.  Its name, which no other has."""
        while name in self.hints:
            name += "_"
        self.hints = {**self.hints, name: hint}
        return name

    def add_guess(self, name: str, hint: int) -> str:
        """Add a symbol whose value nobody knows; the hint is a guess, but where ``guess_again`` has
        a better one.  Its name, which no other has."""
        name = self.add_symbol(name, hint)
        self.hints = {**self.hints, name: self.guesses.setdefault(name, hint)}
        return name

    def guess_again(self, start: Snapshot) -> bool:
        """Go back to a state, with another guess for what failed since then: the nearest value at
        which the last guard does not hold.  A product asks for the number of its weights' rows.

        False where no guess is left: each changes once.
        """
        for name, value in self._other_guesses():
            self.guesses[name] = value
            self.revised.add(name)
            self.hints = start.hints
            self._likely.clear()
            self._restore(start.facts)
            return True
        return False

    def _other_guesses(self) -> Iterator[tuple[str, int]]:
        """Guesses at which the last guard does not hold."""
        for guard in [*self.recorded][-1:]:
            for name in sorted(guard.expression.names & self.guesses.keys() - self.revised):
                guess = self.guesses[name]
                here, beside = (
                    guard.expression.at({**self.hints, name: n}) for n in (guess, guess + 1)
                )
                near = guess - here // (beside - here) if beside != here else guess
                for value in range(max(near, SMALLEST), min(near + 1, LARGEST) + 1):
                    if not guard.holds({**self.hints, name: value}):
                        yield name, value

    @contextmanager
    def ask(self, node: str) -> Iterator[None]:
        """Note a node as the one that asks for the guards that are recorded inside."""
        outer, self.asker = self.asker, node
        try:
            yield
        finally:
            self.asker = outer

    def _answer(self, expression: Expression, relation: Relation) -> bool:
        proven = _proof(self.bounds(expression), relation)
        if proven is not None:
            return proven
        answer = relation.holds(self.likely(expression))
        self.record(Guard(expression, relation if answer else relation.opposite))
        return answer

    def likely(self, expression: Expression) -> int:
        """The value at the hints."""
        value = self._likely.get(expression)
        if value is None:
            value = self._likely[expression] = expression.at(self.hints)
        return value

    def bounds(self, expression: Expression) -> Bounds:
        """An interval that contains all values for which the guards hold."""
        core, factor, constant = parts(expression)
        low, high = scale(self._bounds.get(core, core.bounds), factor)
        return low + constant, high + constant

    def exclude_one(self, name: str) -> None:
        """Record that a symbol is not 1.  It never is, but the graph is not that of 1 then."""
        self.record(Guard(symbol(name) - number(SMALLEST), Relation.NOT_LESS))

    def _learn(self, guard: Guard) -> None:
        """Narrow the interval of what a guard bounds."""
        core, factor, constant = parts(guard.expression)
        low, high = self._bounds.get(core, core.bounds)
        match guard.relation:
            case Relation.EQUAL:
                low = high = -constant // factor
            case Relation.LESS if factor > 0:
                high = min(high, (-constant - 1) // factor)
            case Relation.LESS:
                low = max(low, constant // -factor + 1)
            case Relation.NOT_LESS if factor > 0:
                low = max(low, -(constant // factor))
            case Relation.NOT_LESS:
                high = min(high, constant // -factor)
        self._bounds[core] = low, high

    def answers(self, symbols: Set[str]) -> Iterator[Guard]:
        """All that was decided of some ``symbols``, also what was proven and is not a guard: a
        program from a file is tested for it at each shape, so that no proof is trusted."""
        for (expression, relation), answer in list(self._decided.items()):
            if expression.constant is None and expression.names <= symbols:
                yield Guard(expression, relation if answer else relation.opposite)

    def only(self, expression: Expression) -> int | None:
        """The only value for which the guards hold; None where there are several."""
        low, high = self.bounds(expression)
        if low != high:
            return None
        self.decide(expression - number(low), Relation.EQUAL)
        return low

    def fix(self, expression: Expression) -> int:
        """The value at the hints, which becomes the only one that is allowed."""
        value = self.likely(expression)
        self.decide(expression - number(value), Relation.EQUAL)
        return value

    def named(self, expression: Expression) -> str:
        """The text of a size, by which ``names`` knows it; its digits if it is fixed."""
        if (value := self.only(expression)) is not None:
            return str(value)
        text = f"{{{expression}}}"
        self.names[text] = expression
        return text

    def record(self, guard: Guard) -> None:
        """Add a guard.  Raises ``RuntimeError`` once the code is made: it would not hold."""
        if self.is_closed:
            raise RuntimeError(f"{guard} was decided after the code had been made")
        with self._lock:
            self.recorded.setdefault(guard, _caller())
            self._learn(guard)
        self._note(guard)

    @property
    def snapshot(self) -> Snapshot:
        """All that was found so far."""
        return Snapshot(self.hints, tuple(dict(facts) for facts in self._facts))

    @contextmanager
    def forgetting(self) -> Iterator[dict[Guard, str]]:
        """The guards that are recorded inside; they are not guards after it."""
        before = self.snapshot.facts
        inside: dict[Guard, str] = {}
        try:
            yield inside
        finally:
            inside |= {
                guard: place for guard, place in self.recorded.items() if guard not in before[0]
            }
            self._restore(before)

    def _restore(self, earlier: Facts) -> None:
        for facts, before in zip(self._facts, earlier, strict=True):
            facts.clear()
            facts.update(before)

    @property
    def _facts(self) -> Facts:
        return self.recorded, self._decided, self._bounds

    def hold(self, values: Values) -> bool:
        """Whether every guard holds for values of the symbols."""
        if self.is_closed:
            return self._closed.hold(values)
        return all(guard.holds(values) for guard in self.recorded)

    @cached_property
    def _closed(self) -> Conditions:
        """The guards once no guard comes any more."""
        return self.conditions()

    def conditions(self, symbols: Set[str] | None = None) -> Conditions:
        """The guards that were found so far; those of some ``symbols`` only, if these are said."""
        guards = [g for g in self.recorded if symbols is None or g.expression.names <= symbols]
        test = conditions((guard.expression, guard.relation) for guard in guards)
        return Conditions(test, self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The guards as a report shows them, without those that keep sizes below huge numbers."""
        return tuple(str(guard) for guard in self.recorded if not guard.is_limit)


@dataclass(frozen=True, repr=False)
class Conditions(Concise):
    """The guards of a program that is made: a ``test``, and the texts that a report shows."""

    test: StraightLine
    texts: tuple[str, ...]

    def to_json(self) -> list[object]:
        """The parts in types that ``json`` writes."""
        return [self.test.to_json(), list(self.texts)]

    def hold(self, values: Values) -> bool:
        """Whether every guard holds; it is asked several times for a new shape."""
        return self._answers(tuple(values.items()))

    @cached_property
    def _answers(self) -> Callable[[tuple[tuple[str, int], ...]], bool]:
        return lru_cache(MOST_ANSWERS)(lambda values: self.test.at(dict(values)) is not None)


def _proof(bounds: Bounds, relation: Relation) -> bool | None:
    """Whether a relation to 0 holds for all values in an interval, or for none; else None."""
    low, high = bounds
    match relation:
        case Relation.EQUAL | Relation.UNEQUAL:
            if low == high == 0:
                return relation is Relation.EQUAL
            return relation is Relation.UNEQUAL if low > 0 or high < 0 else None
        case Relation.LESS | Relation.NOT_LESS:
            if high < 0:
                return relation is Relation.LESS
            return relation is Relation.NOT_LESS if low >= 0 else None


def _caller() -> str:
    """File and line of the first frame outside of this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inner(filename: str) -> bool:
    """Whether code only passes a question on: this folder, and what dataclasses generate."""
    return "/symbolic/" in filename or filename.startswith("<")
