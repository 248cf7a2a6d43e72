"""The numbers of a program at one shape: what the table of calls and their arguments depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.backends.llvm.emitted import EmittedCall, EmittedProgram, Place, Pointer
from quantglow.concise import Concise
from quantglow.instr.program import View
from quantglow.lazy import cached_property
from quantglow.memory.planner import ALIGNMENT
from quantglow.symbolic.evaluation import Evaluation
from quantglow.symbolic.expression import Values
from quantglow.symbolic.size import expression_of, is_free, likely
from quantglow.types import Array

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of an array."""

Ends = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
"""For each array, the position of each of its sizes among the results of an evaluation, and its
element type."""

MOST_PLANS = 8
"""Maximum number of memory plans that are kept."""

SIGNIFICANT_BITS = 5
"""Bits of the sizes that a plan is made for: that of a cache which grows serves several calls, and
no buffer is larger by more than a sixteenth."""


@dataclass(frozen=True, eq=False, repr=False)
class Binding(Concise):
    """A program at one shape.

    arena_nbytes  size of the arena
    buffers       offset in the arena of each of its buffers
    offsets       bytes from the base of each pointer, in the order of all calls
    items, work   of each call
    inputs        shapes and types
    outputs       the same
    lengths       of the axes whose indices are checked
    values        of the symbols, in a program for all shapes
    """

    arena_nbytes: int
    buffers: Array
    offsets: Array
    items: Array
    work: Array
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    lengths: tuple[int, ...]
    values: Values = field(default_factory=dict)

    @staticmethod
    def of(program: EmittedProgram) -> Binding:
        """The numbers of a program for one shape."""
        calls = program.rows
        return Binding(
            program.arena_nbytes,
            np.zeros(1, np.int64),
            np.array([p.offset_bytes for call in calls for p in call.pointers], np.int64),
            np.array([call.items for call in calls], np.int64),
            np.array([shared_work(call) for call in calls], np.float64),
            tuple((view.shape, view.type.dtype.numpy) for _, view in program.inputs),
            tuple((view.shape, view.type.dtype.numpy) for _, view in program.outputs),
            checked_lengths(program),
        )


def checked_lengths(program: EmittedProgram) -> tuple[int, ...]:
    """The lengths of the axes whose indices are checked."""
    return tuple(op.length for op in program.indexings)


def shared_work(call: EmittedCall) -> float:
    """The work that threads may share: a loop runs on one."""
    return 0.0 if call.body else call.work


@dataclass(frozen=True, eq=False, repr=False)
class Bindings(Concise):
    """The bindings of a program for all shapes."""

    program: EmittedProgram

    def at(self, values: Values) -> Binding:
        """The binding for values of the symbols."""
        found = self._numbers
        numbers = found.evaluation.at(values)
        results = np.array(numbers, np.int64)
        buffers, arena_nbytes = self._plan(numbers)
        items = results[found.items]
        shapes = {at: tuple([numbers[i] for i in at]) for at in found.shapes}
        return Binding(
            arena_nbytes,
            buffers,
            results[found.offsets],
            items,
            found.work_of_item * items,
            tuple([(shapes[at], kind) for at, kind in found.inputs]),
            tuple([(shapes[at], kind) for at, kind in found.outputs]),
            tuple([numbers[i] for i in found.lengths]),
            values,
        )

    def _plan(self, numbers: Sequence[int]) -> tuple[Array, int]:
        """The offsets of the buffers, and the size of the arena."""
        found, order = self._numbers, self.program.order
        assert order is not None
        free = {i: rounded(numbers[i]) for i in found.free}
        key = tuple(free.values())
        if (known := self._plans.get(key)) is not None:
            return known
        offsets, arena_nbytes = order.offsets([free.get(i, numbers[i]) for i in found.buffers])
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        return self._plans.setdefault(key, (np.array(offsets, np.int64), arena_nbytes))

    @cached_property
    def _plans(self) -> dict[tuple[int, ...], tuple[Array, int]]:
        return {}

    @cached_property
    def _numbers(self) -> _Numbers:
        return _Numbers.of(self.program)


def rounded(nbytes: int) -> int:
    """The size, or the next one of few significant bits that is a multiple of the alignment."""
    step = max(ALIGNMENT, 1 << max(0, nbytes.bit_length() - SIGNIFICANT_BITS))
    return -(-nbytes // step) * step


@dataclass(frozen=True, eq=False, repr=False)
class _Numbers(Concise):
    """Positions of a program's numbers among the results of one evaluation; ``free``: of the sizes
    of buffers that are no constants."""

    evaluation: Evaluation
    buffers: list[int]
    free: set[int]
    offsets: Array
    items: Array
    work_of_item: Array
    inputs: Ends
    outputs: Ends
    lengths: list[int]

    @cached_property
    def shapes(self) -> set[tuple[int, ...]]:
        """Positions of the sizes of inputs and outputs; many have the same shape."""
        return {sizes for sizes, _ in (*self.inputs, *self.outputs)}

    @staticmethod
    def of(program: EmittedProgram) -> _Numbers:
        evaluation = Evaluation()

        def position(value: int) -> int:
            return evaluation.add(expression_of(value))

        def ends(ports: Sequence[tuple[str, View]]) -> Ends:
            return tuple(
                (tuple(map(position, view.shape)), view.type.dtype.numpy) for _, view in ports
            )

        calls = program.rows
        assert program.order is not None
        work = [float(likely(shared_work(call))) / likely(call.items) for call in calls]
        return _Numbers(
            evaluation,
            [position(nbytes) for nbytes in program.order.nbytes],
            {position(nbytes) for nbytes in program.order.nbytes if is_free(nbytes)},
            np.array([position(p.offset_bytes) for call in calls for p in call.pointers], np.intp),
            np.array([position(call.items) for call in calls], np.intp),
            np.array(work, np.float64),
            ends(program.inputs),
            ends(program.outputs),
            list(map(position, checked_lengths(program))),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Places(Concise):
    """The base of each pointer of a program: the same at all shapes.

    slots     position among the bases: 0 (no memory), the checks, the table, the arguments of all
              calls, constants, buffers of the arena
    external  positions of the pointers to inputs and outputs
    ends      the input or output of each of these
    first     position of the first pointer of each row
    """

    slots: Array
    external: Array
    ends: Array
    first: Array
    checked: int = field(default=0)

    @staticmethod
    def of(program: EmittedProgram) -> Places:
        """The places of an emitted program."""
        pointers = [pointer for call in program.rows for pointer in call.pointers]
        arena = 4 + len(program.constants)

        def slot(pointer: Pointer) -> int:
            match pointer.place:
                case Place.CHECK:
                    return 1
                case Place.ROW:
                    return 2
                case Place.ARGUMENT:
                    return 3
                case Place.CONSTANT:
                    return 4 + pointer.index
                case Place.ARENA:
                    return arena + pointer.index
            return 0

        ends = {Place.INPUT: 0, Place.OUTPUT: len(program.inputs)}
        external = [
            (position, ends[pointer.place] + pointer.index)
            for position, pointer in enumerate(pointers)
            if pointer.place in ends
        ]
        positions, which = np.array(external, np.int64).reshape(-1, 2).T
        counts = [len(call.pointers) for call in program.rows]
        return Places(
            np.array([slot(pointer) for pointer in pointers], np.int64),
            positions,
            which,
            np.cumsum([0, *counts])[: len(counts)],
            sum(call.kernel.checked for call in program.rows),
        )
