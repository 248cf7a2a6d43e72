"""A loop while it runs, and its trips in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.backends.onnxruntime.session import Session
from quantglow.concise import Concise
from quantglow.errors import InputError
from quantglow.foreign_types import Array
from quantglow.graph.trips import Trips
from quantglow.lazy import cached_property

NamedArrays = Mapping[str, Array]


@dataclass
class Progress:
    """A loop that runs.

    captured  values that are the same in all trips
    carried   the carried values
    rows      what trips stacked: for each result some arrays, to be joined along axis 0
    limit     most trips; None: any number
    trips     that were made
    holds     whether the condition holds
    """

    names: Trips
    captured: tuple[Array, ...]
    carried: tuple[Array, ...]
    rows: tuple[list[Array], ...]
    limit: int | None
    trips: int = 0
    holds: bool = True

    @property
    def goes_on(self) -> bool:
        """Whether there is a next trip."""
        return self.holds and self.trips != self.limit

    @property
    def has_elements(self) -> bool:
        """Whether no value is empty."""
        return all(array.size for array in (*self.captured, *self.carried))

    @property
    def feeds(self) -> dict[str, Array]:
        """The inputs of the next trip."""
        names = self.names
        found = dict(zip(names.captured, self.captured, strict=True))
        pairs = zip(names.carried, self.carried, strict=True)
        found |= {carry.given: array for carry, array in pairs if carry.given}
        if names.number:
            found[names.number] = np.full(names.dims, self.trips, np.int64)
        return found

    def proceed(self, made: NamedArrays) -> None:
        """Go on with what a trip gave."""
        names = self.names
        pairs = zip(names.carried, self.carried, strict=True)
        self.carried = tuple(made[c.after] if c.after else array for c, array in pairs)
        for rows, name in zip(self.rows, names.stacked, strict=True):
            rows.append(made[name][None])
        self.holds = not names.holds or bool(first_element(made[names.holds]))
        self.trips += 1

    def copy(self) -> Progress:
        """The same, which goes its own way."""
        return replace(self, rows=tuple([] for _ in self.rows))

    @property
    def results(self) -> dict[str, Array]:
        """The results of the loop."""
        pairs = zip(self.names.carried, self.carried, strict=True)
        found = {
            "carried": [array if carry.after else array.copy() for carry, array in pairs],
            "stacked": [np.concatenate(rows) for rows in self.rows],
        }
        return {name: found[kind][number] for name, kind, number in self.names.results}


def first_element(array: Array) -> Any:
    """The value of a number of trips or of a condition.  Raises ``InputError``."""
    if not array.size:
        raise InputError(
            f"a number of trips or a condition of a Loop has the shape {array.shape}, so no value. "
            "Remedy: feed arrays for which the model computes a scalar there."
        )
    return array.reshape(-1)[0]


@dataclass(frozen=True, eq=False, repr=False)
class TripSession(Concise):
    """A trip in onnxruntime, whose session ``open`` opens."""

    open: Callable[[], Session]

    @cached_property
    def session(self) -> Session:
        """The session."""
        return self.open()

    def step(self, progress: Progress) -> None:
        """Make a trip."""
        feeds = progress.feeds
        found = self.session.run({name: feeds[name] for name in self.session.input_names})
        names = [info.name for info in self.session.outputs]
        progress.proceed(dict(zip(names, found, strict=True)))
