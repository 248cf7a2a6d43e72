"""Loop: a graph that runs several times, with values that one trip hands to the next.

``Trips`` names the values of a Loop whose body is a model of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node, op
from quantglow.ir.symbolic.size import Dim, decide
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array

Kind = Literal["carried", "stacked"]
"""Whether a result of a loop is a carried value, or has the values of all trips."""

Watch = Callable[[Mapping[Node, Array]], None]
"""Called with the values of one trip."""

ENDLESS = 2**62
"""Trips of a loop that only its condition ends."""


@op
class Loop(Node):
    """Result number ``output`` of ``trips`` runs of ``body``.

    Inputs of the body are, in this order: ``carried`` values, of which the operands are those of
    the first trip; element t of axis 0 of ``sliced`` operands in trip t; ``captured`` operands.
    Its outputs are the carried values of the next trip, then values of which each trip gives one
    element: those are stacked along axis 0.  The results of a Loop are the carried values after the
    last trip and the stacked ones; several results are as many nodes with the same operands and the
    same body.

    ``conditional``: the first carried value is a condition, and a trip runs only while it is true.
    Such a loop stacks nothing, since nobody knows the number of its trips.
    """

    carried: tuple[Node, ...]
    sliced: tuple[Node, ...]
    captured: tuple[Node, ...]
    body: Graph
    trips: Dim
    output: int = 0
    conditional: bool = False

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    def with_bodies(self, change: Callable[[Graph], Graph]) -> Node:
        body = change(self.body)
        return self if body is self.body else replace(self, body=body)

    @property
    def results(self) -> list[TensorType]:
        """The types of all results."""
        types = [node.type for _, node in self.body.outputs]
        stacked = types[len(self.carried) :]
        return types[: len(self.carried)] + [
            kind.with_shape((self.trips, *kind.shape)) for kind in stacked
        ]

    def infer(self) -> TensorType:
        inputs = [node.type for node in self.body.inputs]
        expected = [x.type for x in self.carried]
        for x in self.sliced:
            if not x.type.rank or decide(x.type.shape[0] != self.trips):
                raise self.refuse(f"{x.name!r} has not {self.trips} elements along axis 0")
            expected.append(x.type.with_shape(x.type.shape[1:]))
        expected += [x.type for x in self.captured]
        if inputs != expected:
            raise self.refuse(f"the body takes {_words(inputs)}, not {_words(expected)}")
        outputs = [node.type for _, node in self.body.outputs]
        if outputs[: len(self.carried)] != expected[: len(self.carried)]:
            raise self.refuse(f"the body gives {_words(outputs)}, which it cannot take again")
        is_known = 0 <= self.output < len(outputs)
        if not (is_known and decide(self.trips >= 0) and decide(self.trips <= ENDLESS)):
            raise self.refuse(f"there is no result {self.output} of {self.trips} trips")
        if self.conditional:
            self._check_condition()
        return self.results[self.output]

    def _check_condition(self) -> None:
        first = self.carried[0].type if self.carried else None
        if first is None or first.dtype is not DType.BOOL or not first.is_single:
            raise self.refuse("its first carried value is no condition")
        if len(self.body.outputs) > len(self.carried):
            raise self.refuse("it stacks values of an unknown number of trips")

    def reference(
        self, carried: tuple[Array, ...], sliced: tuple[Array, ...], captured: tuple[Array, ...]
    ) -> Array:
        operands = (*carried, *sliced, *captured)
        latest = _latest.runs.get(self.body)
        if latest is not None and latest[0] == self._key(operands):
            return latest[1][self.output].copy()
        return self.watched(operands, lambda values: None)

    def watched(self, operands: Sequence[Array], watch: Watch) -> Array:
        """The result for some operands; ``watch`` is shown all values of each trip.

        All results of this thread's last run of a body are kept for the other nodes of the loop.
        """
        results = self._compute(operands, watch)
        _latest.runs[self.body] = self._key(operands), results
        return results[self.output].copy()

    def _key(self, operands: Sequence[Array]) -> object:
        return self.trips, self.conditional, _digest(operands)

    def _compute(self, operands: Sequence[Array], watch: Watch) -> list[Array]:
        """All results."""
        count, last = len(self.carried), len(self.carried) + len(self.sliced)
        sliced, captured = operands[count:last], operands[last:]
        ends = [node for _, node in self.body.outputs]
        state: Sequence[Array] = operands[:count]
        rows: list[list[Array]] = [[] for _ in ends[count:]]
        for trip in range(self.trips):
            if self.conditional and not state[0].item():
                break
            values = run(self.body, [*state, *(x[trip] for x in sliced), *captured])
            watch(values)
            state = [values[node] for node in ends[:count]]
            for row, end in zip(rows, ends[count:], strict=True):
                row.append(values[end])
        kinds = self.results[count:]
        stacked = [
            np.stack(row) if row else np.empty(kind.shape, kind.dtype.numpy)
            for row, kind in zip(rows, kinds, strict=True)
        ]
        return [*state, *stacked]


class _Latest(threading.local):
    """The last run of each body: what it computed, from what."""

    def __init__(self) -> None:
        self.runs: WeakKeyDictionary[Graph, tuple[object, list[Array]]] = WeakKeyDictionary()


_latest = _Latest()


def _digest(operands: Sequence[Array]) -> bytes:
    """A hash of all elements."""
    digest = hashlib.blake2b()
    for array in operands:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def run(body: Graph, inputs: Sequence[Array]) -> dict[Node, Array]:
    """The values of one trip."""
    values: dict[Node, Array] = dict(zip(body.inputs, map(np.asarray, inputs), strict=True))
    for node in body.nodes:
        if node not in values:
            values[node] = node.evaluate(*(values[operand] for operand in node.operands))
    return values


def _words(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


@dataclass(frozen=True)
class Carry:
    """A carried value: the operand of the loop that is the first one, the input of the body ("" if
    that does not read it), and its output ("" if it stays what it is)."""

    operand: str
    inside: str
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
