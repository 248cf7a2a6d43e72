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
from quantglow.symbolic.evaluation import Evaluation
from quantglow.symbolic.expression import Values
from quantglow.symbolic.size import expression_of, likely
from quantglow.types import Array

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of an array."""

Positions = tuple[tuple[int, ...], ...]
"""For each array, the position of each of its sizes among the results of an evaluation."""


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
    """

    arena_nbytes: int
    buffers: Array
    offsets: Array
    items: Array
    work: Array
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    lengths: tuple[int, ...]

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
        order = self.program.order
        assert order is not None
        buffers, arena_nbytes = order.offsets([numbers[i] for i in found.buffers])
        items = results[found.items]

        def kinds(shapes: Positions, views: Sequence[tuple[str, View]]) -> tuple[Kind, ...]:
            return tuple(
                (tuple([numbers[i] for i in sizes]), view.type.dtype.numpy)
                for sizes, (_, view) in zip(shapes, views, strict=True)
            )

        return Binding(
            arena_nbytes,
            np.array(buffers, np.int64),
            results[found.offsets],
            items,
            found.work_of_item * items,
            kinds(found.inputs, self.program.inputs),
            kinds(found.outputs, self.program.outputs),
            tuple([numbers[i] for i in found.lengths]),
        )

    @cached_property
    def _numbers(self) -> _Numbers:
        return _Numbers.of(self.program)


@dataclass(frozen=True, eq=False, repr=False)
class _Numbers(Concise):
    """Positions of a program's numbers among the results of one evaluation."""

    evaluation: Evaluation
    buffers: list[int]
    offsets: Array
    items: Array
    work_of_item: Array
    inputs: Positions
    outputs: Positions
    lengths: list[int]

    @staticmethod
    def of(program: EmittedProgram) -> _Numbers:
        evaluation = Evaluation()

        def position(value: int) -> int:
            return evaluation.add(expression_of(value))

        calls = program.rows
        assert program.order is not None
        work = [float(likely(shared_work(call))) / likely(call.items) for call in calls]
        return _Numbers(
            evaluation,
            [position(nbytes) for nbytes in program.order.nbytes],
            np.array([position(p.offset_bytes) for call in calls for p in call.pointers], np.intp),
            np.array([position(call.items) for call in calls], np.intp),
            np.array(work, np.float64),
            tuple(tuple(map(position, view.shape)) for _, view in program.inputs),
            tuple(tuple(map(position, view.shape)) for _, view in program.outputs),
            list(map(position, checked_lengths(program))),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Places(Concise):
    """The base of each pointer of a program: the same at all shapes.

    slots     position among the bases: 0 (no memory), the checks, the table, the arguments of all
              calls, constants, buffers of the arena
    external  position of the pointers to inputs and outputs, and which of these
    first     position of the first pointer of each row
    """

    slots: Array
    external: tuple[tuple[int, int], ...]
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
        external = tuple(
            (position, ends[pointer.place] + pointer.index)
            for position, pointer in enumerate(pointers)
            if pointer.place in ends
        )
        counts = [len(call.pointers) for call in program.rows]
        return Places(
            np.array([slot(pointer) for pointer in pointers], np.int64),
            external,
            np.cumsum([0, *counts])[: len(counts)],
            sum(call.kernel.checked for call in program.rows),
        )
