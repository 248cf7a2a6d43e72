"""Trips of a loop: its progress, trips in onnxruntime, and blocks of native trips.

A block runs without Python in between.  A carried value has two buffers: each trip reads one and
writes the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.ir.ops.loop import Trips
from quantglow.ort.session import Session
from quantglow.runtime.native.buffers import aligned_bytes, uninitialized
from quantglow.runtime.native.executable import LONG_WORK, LlvmExecutable
from quantglow.runtime.native.program_table import Kind
from quantglow.runtime.native.sequences import Ends, ExecutableChain
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError, InputError

NamedArrays = Mapping[str, Array]

TRIPS = 64
"""Maximum number of trips of a block, which is even: the buffers of all blocks begin alike."""

ProgramAt = Callable[[Mapping[str, tuple[int, ...]]], LlvmExecutable]
"""The program of a trip, given the shapes of its inputs."""


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
        feeds = dict(zip(names.captured, self.captured, strict=True))
        pairs = zip(names.carried, self.carried, strict=True)
        feeds |= {carry.inside: array for carry, array in pairs if carry.inside}
        if names.number:
            feeds[names.number] = np.full(names.dims, self.trips, np.int64)
        return feeds

    def proceed(self, values: NamedArrays) -> None:
        """Go on with what a trip gave."""
        names = self.names
        pairs = zip(names.carried, self.carried, strict=True)
        self.carried = tuple(values[c.after] if c.after else array for c, array in pairs)
        for rows, name in zip(self.rows, names.stacked, strict=True):
            rows.append(values[name][None])
        self.holds = not names.holds or bool(first_element(values[names.holds]))
        self.trips += 1

    def copy(self) -> Progress:
        """The same, which goes its own way."""
        return replace(self, rows=tuple([] for _ in self.rows))

    @property
    def results(self) -> dict[str, Array]:
        """The results of the loop."""
        pairs = zip(self.names.carried, self.carried, strict=True)
        results = {
            "carried": [array if carry.after else array.copy() for carry, array in pairs],
            "stacked": [np.concatenate(rows) for rows in self.rows],
        }
        return {name: results[kind][number] for name, kind, number in self.names.results}


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

    def on_threads(self, num_threads: int) -> TripSession:
        """The same for another number of threads."""
        return TripSession(lambda: self.session.on_threads(num_threads))

    def step(self, progress: Progress) -> None:
        """Make a trip."""
        feeds = progress.feeds
        values = self.session.run({name: feeds[name] for name in self.session.input_names})
        names = [info.name for info in self.session.outputs]
        progress.proceed(dict(zip(names, values, strict=True)))


def _kind_nbytes(kind: Kind) -> int:
    """The size of an array in bytes."""
    shape, dtype = kind
    return math.prod(shape) * dtype.itemsize


@dataclass(frozen=True, eq=False, repr=False)
class TripBlock(Concise):
    """Programs of trips, one after the other.

    kinds    of the carried values: before the first trip, and after each
    stacked  shape and type of the values that each trip stacks
    """

    names: Trips
    chain: ExecutableChain
    kinds: tuple[tuple[Kind, ...], ...]
    stacked: tuple[Kind, ...]

    @property
    def count(self) -> int:
        """The number of trips."""
        return len(self.chain.runs)

    @property
    def room(self) -> list[int]:
        """Bytes that a buffer of each carried value needs."""
        return [max(map(_kind_nbytes, kinds)) for kinds in zip(*self.kinds, strict=True)]

    @staticmethod
    def of(
        names: Trips,
        kinds: tuple[Kind, ...],
        captured: Mapping[str, tuple[int, ...]],
        count: int,
        program_at: ProgramAt,
    ) -> TripBlock:
        """So many trips from carried values of these types on.

        Raises ``QuantglowError`` where a trip has no program, or values of other types.
        """
        carried_kinds, runs, rows = [kinds], list[LlvmExecutable](), list[tuple[Kind, ...]]()
        for _ in range(count):
            pairs = zip(names.carried, carried_kinds[-1], strict=True)
            shapes = {carry.inside: kind[0] for carry, kind in pairs if carry.inside}
            if names.number:
                shapes[names.number] = names.dims
            run = program_at({**shapes, **captured})
            types = dict(zip(run.output_names, run.binding.outputs, strict=True))
            carried_kinds.append(_following(names, carried_kinds[-1], types))
            rows.append(tuple(types[name] for name in names.stacked))
            runs.append(run)
        if len(set(rows)) != 1:
            raise BackendError(f"what its trips stack differs in shape: {sorted(set(rows))}")
        (stacked,) = set(rows)
        places = _Places(names, stacked)
        ends = [places.ends(run, trip) for trip, run in enumerate(runs)]
        return TripBlock(names, ExecutableChain.of(runs, ends), tuple(carried_kinds), stacked)

    def run(self, buffers: Sequence[Array], progress: Progress, count: int) -> None:
        """Make so many trips, or fewer where the condition ends them.

        ``buffers``: two for each carried value, with its value in the first.
        """
        rows = [uninitialized((count, *shape), dtype) for shape, dtype in self.stacked]
        numbers = np.arange(progress.trips, progress.trips + count)
        holds = np.ones(8, bool)
        arrays = [*buffers, *progress.captured, *rows, numbers, holds]
        self.chain.point(np.array([array.ctypes.data for array in arrays], np.int64))
        step = 1 if self.names.holds else self._most_at_once
        done = 0
        while done < count and holds[0]:
            end = min(done + step, count)
            self.chain.run(done, end)
            done = end
        progress.trips += done
        progress.holds = bool(holds[0])
        for stack, row in zip(progress.rows, rows, strict=True):
            stack.append(row[:done])
        progress.carried = tuple(
            view(buffers[2 * n + (done % 2 if carry.after else 0)], self.kinds[done][n])
            for n, carry in enumerate(self.names.carried)
        )

    @property
    def _most_at_once(self) -> int:
        """Trips between which nobody can end the loop."""
        work = max(run.shared_work for run in self.chain.runs)
        return max(1, int(LONG_WORK / max(work, 1)))


def _following(names: Trips, before: Sequence[Kind], types: Mapping[str, Kind]) -> tuple[Kind, ...]:
    """The types of the carried values after a trip.  Raises ``BackendError``."""
    after = [
        types[carry.after] if carry.after else kind
        for carry, kind in zip(names.carried, before, strict=True)
    ]
    for one, other, carry in zip(before, after, names.carried, strict=True):
        if one[1] != other[1] or len(one[0]) != len(other[0]):
            raise BackendError(f"{carry.operand!r} is {one}, then {other}")
    return tuple(after)


@dataclass(frozen=True)
class _Places:
    """The buffers of a block in their order: two for each carried value, one for each captured one,
    those of what is stacked, the numbers of the trips, and the condition."""

    names: Trips
    stacked: tuple[Kind, ...]

    def ends(self, run: LlvmExecutable, trip: int) -> Ends:
        """The places of the inputs and outputs of a trip."""
        before, after = self._before(trip), self._after(trip)
        inputs = [before[name] for name in run.table.input_names]
        return [*inputs, *(after[name] for name in run.table.output_names)]

    def _before(self, trip: int) -> dict[str, tuple[int, int]]:
        names, count = self.names, len(self.names.carried)
        places = {
            carry.inside: (2 * n + (trip % 2 if carry.after else 0), 0)
            for n, carry in enumerate(names.carried)
        }
        places |= {name: (2 * count + n, 0) for n, name in enumerate(names.captured)}
        places[names.number] = self._first_row + len(self.stacked), 8 * trip
        return places

    def _after(self, trip: int) -> dict[str, tuple[int, int]]:
        names = self.names
        places = {c.after: (2 * n + 1 - trip % 2, 0) for n, c in enumerate(names.carried)}
        sizes = map(_kind_nbytes, self.stacked)
        rows = enumerate(zip(names.stacked, sizes, strict=True), self._first_row)
        places |= {name: (n, trip * nbytes) for n, (name, nbytes) in rows}
        places[names.holds] = self._first_row + len(self.stacked) + 1, 0
        return places

    @property
    def _first_row(self) -> int:
        return 2 * len(self.names.carried) + len(self.names.captured)


def buffers_for(block: TripBlock, values: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """Two buffers for each carried value, with its value in the first: ``old`` ones, which have the
    values, where they are large enough."""
    buffers: list[Array] = []
    for number, (value, nbytes) in enumerate(zip(values, block.room, strict=True)):
        pair = list(old[2 * number : 2 * number + 2])
        if not pair or pair[0].nbytes < nbytes:
            pair = [aligned_bytes(2 * nbytes if old else nbytes) for _ in range(2)]
            pair[0][: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        buffers += pair
    return buffers


def view(buffer: Array, kind: Kind) -> Array:
    """A value in a buffer."""
    shape, dtype = kind
    return buffer[: _kind_nbytes(kind)].view(dtype).reshape(shape)
