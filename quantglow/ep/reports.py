"""Reports on the graphs that onnxruntime showed: nodes that quantglow took, and the others."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.ep.interface import IN_ONNXRUNTIME, IN_PYTHON
from quantglow.ep.sessions import session_in_the_making
from quantglow.support.arrays import Array

MOST_CLAIMS = 256
"""Maximum number of graphs that are remembered, the last ones."""


@dataclass(frozen=True)
class Claim:
    """The nodes of a graph that quantglow took: so many ``claimed`` of all ``nodes``, in ``groups``
    parts; ``reasons`` why it took no others, each once.

    ``left``: how many nodes of each operator it did not take.  ``macs`` and ``macs_left``: the
    multiply-accumulates of these nodes and of those, at the sizes at which the graph was looked at.
    """

    nodes: int
    claimed: int
    groups: int
    reasons: tuple[str, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    macs: int = 0
    macs_left: int = 0

    def __str__(self) -> str:
        text = f"quantglow takes {self.claimed} of {self.nodes} nodes in {self.groups} part(s)"
        return "; ".join([text, *self.reasons])


@dataclass(eq=False)
class CallCounts:
    """Calls of a part by the way to answer them; the plug-in counts in a word of each program."""

    programs: dict[int, tuple[int, Array]] = field(default_factory=dict)
    closed: Counter[int] = field(default_factory=Counter)
    refused: int = 0

    def counter(self, way: int) -> Array:
        """A word [1], int64, for the calls of one more program."""
        word = np.zeros(1, np.int64)
        self.programs[word.ctypes.data] = way, word
        return word

    def close(self, address: int) -> None:
        """Count a program's calls for good: its word is not written any more."""
        way, word = self.programs.pop(address)
        self.closed[way] += int(word[0])

    def of(self, way: int) -> int:
        """Calls so far.  Python hands over those that quantglow refuses."""
        words = [word for each, word in list(self.programs.values()) if each == way]
        number = self.closed[way] + sum(int(word[0]) for word in words)
        moved = {IN_PYTHON: -self.refused, IN_ONNXRUNTIME: self.refused}
        return number + moved.get(way, 0)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a graph that quantglow compiled: its number of nodes, and its calls."""

    nodes: int
    counts: CallCounts


@dataclass(frozen=True)
class SessionRecord:
    """The graphs that were claimed for a session, and parts; these live as long as onnxruntime has
    them."""

    claims: list[Claim] = field(default_factory=list)
    parts: list[weakref.ref[Part]] = field(default_factory=list)

    def live_parts(self) -> Iterator[Part]:
        """The parts that onnxruntime still has."""
        yield from (part for each in self.parts if (part := each()) is not None)


_claims: deque[Claim] = deque(maxlen=MOST_CLAIMS)
_sessions: weakref.WeakKeyDictionary[Any, SessionRecord] = weakref.WeakKeyDictionary()


def remember(claim: Claim) -> None:
    """Keep a claim for ``claims``, and for the session that this thread makes."""
    _claims.append(claim)
    if (record := _record_in_the_making()) is not None:
        record.claims.append(claim)


def new_part(nodes: int) -> Part:
    """A part, which is one of the session that this thread makes."""
    part = Part(nodes, CallCounts())
    if (record := _record_in_the_making()) is not None:
        record.parts.append(weakref.ref(part))
    return part


def _record_in_the_making() -> SessionRecord | None:
    session = session_in_the_making()
    return None if session is None else _sessions.setdefault(session, SessionRecord())


def record_of(session: Any) -> SessionRecord | None:
    """The record of a session; None where the provider was not asked by one of Python."""
    return _sessions.get(session)


def claims() -> list[Claim]:
    """The claims of all sessions of this process, the last one last."""
    return list(_claims)
