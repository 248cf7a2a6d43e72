"""Names of the values of a Loop whose body is a model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["carried", "stacked"]
"""Whether a result of a loop is a carried value, or has the values of all trips."""


@dataclass(frozen=True)
class Carry:
    """A carried value: the operand of the loop that is the first one, the input of the body ("" if
    that does not read it), and its output ("" if it stays what it is)."""

    operand: str
    given: str
    after: str


@dataclass(frozen=True)
class Trips:
    """A Loop, by the names of its operands and results, and of the ends of its body.

    limit      operand with the number of trips, "" if there is none
    condition  operand that says whether there is a first trip, "" if there is none
    number     input of the body with the number of the trip, "" if it does not read it
    dims       the shape of that
    holds      output of the body that says whether there is a next trip, "" if it always does
    carried    the carried values
    stacked    outputs of the body whose values of all trips are results
    captured   inputs of the body that are the same in all trips
    results    the results that something reads: name, kind, and number among those of its kind
    """

    limit: str
    condition: str
    number: str
    dims: tuple[int, ...]
    holds: str
    carried: tuple[Carry, ...]
    stacked: tuple[str, ...]
    captured: tuple[str, ...]
    results: tuple[tuple[str, Kind, int], ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands, each once."""
        first = (self.limit, self.condition, *(carry.operand for carry in self.carried))
        return tuple(dict.fromkeys(filter(None, first)))
