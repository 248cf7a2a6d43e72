"""Emitted programs as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from quantglow.backends.llvm.emitted import CALL_WORK, EmittedCall, EmittedProgram, Place, Pointer
from quantglow.backends.llvm.runtime.profiler import facts_of
from quantglow.backends.llvm.runtime.program_table import (
    OWN_BASES,
    End,
    Operands,
    Places,
    ProgramTable,
)
from quantglow.foreign_types import Array
from quantglow.instr.program import BufferKind, Fill, View
from quantglow.symbolic.evaluation import Condition, Evaluation
from quantglow.symbolic.expression import Expression, number
from quantglow.symbolic.guards import Guards
from quantglow.symbolic.size import expression_of, is_free, likely


def table_of(program: EmittedProgram, guards: Guards | None = None) -> ProgramTable:
    """The table of an emitted program; ``guards``: those of its sizes."""
    sizes, rows, order = _Sizes(), program.rows, program.order
    work = [float(likely(shared_work(row))) / likely(row.items) for row in rows]
    nbytes = () if order is None else order.nbytes
    parts = (
        np.array(sizes.positions(p.offset_bytes for r in rows for p in r.pointers), np.intp),
        np.array(sizes.positions(row.items for row in rows), np.intp),
        np.array(work, np.float64),
        tuple(sizes.end(*port) for port in program.inputs),
        tuple(sizes.end(*port) for port in program.outputs),
        sizes.positions(op.length for op in program.indexings),
        tuple(str(op.name) for op in program.indexings),
        loops_of(program),
        operands_of(program, sizes.evaluation, guards),
        tuple(map(facts_of, program.calls)),
        program.arena_nbytes,
        sizes.positions(nbytes),
        tuple(dict.fromkeys(sizes.positions(filter(is_free, nbytes)))),
        None if order is None else order.arena,
    )
    numbers = sizes.evaluation.program()
    constants = len(program.constants)
    return ProgramTable(
        program.target, program.count, constants, places_of(program), numbers, *parts
    )


def places_of(program: EmittedProgram) -> Places:
    """The places of an emitted program."""
    pointers = [pointer for call in program.rows for pointer in call.pointers]
    arena = OWN_BASES + len(program.constants)
    ends = {Place.INPUT: 0, Place.OUTPUT: len(program.inputs)}
    external = [
        (position, ends[pointer.place] + pointer.index)
        for position, pointer in enumerate(pointers)
        if pointer.place in ends
    ]
    positions, which = np.array(external, np.int64).reshape(-1, 2).T
    counts = [len(call.pointers) for call in program.rows]
    return Places(
        np.array([slot_of(pointer, arena) for pointer in pointers], np.int64),
        positions,
        which,
        np.cumsum([0, *counts])[: len(counts)],
    )


def operands_of(program: EmittedProgram, numbers: Evaluation, guards: Guards | None) -> Operands:
    """The distinct operands of a program whose table has these ``numbers``."""
    sizes, pointers = _Sizes(), [pointer for row in program.rows for pointer in row.pointers]
    extents = [(at, p.extent) for at, p in enumerate(pointers) if p.extent is not None]
    rank = max((len(extent.shape) for _, extent in extents), default=0)
    first: dict[tuple[object, ...], int] = {}
    columns = []
    for at, extent in extents:
        missing, pointer = rank - len(extent.shape), pointers[at]
        column = (
            extent.element_nbytes,
            *sizes.positions((*extent.shape, *[1] * missing)),
            *sizes.positions((*extent.strides, *[0] * missing)),
            *sizes.positions((extent.begin, extent.nbytes)),
        )
        offset = numbers.add(expression_of(pointer.offset_bytes))
        if first.setdefault((pointer.place, pointer.index, offset, *column), at) == at:
            columns.append((at, *column))
    table = narrowed(columns).reshape(len(columns), 2 * rank + 4).T
    answers = () if guards is None else guards.answers
    tested: list[Condition] = [(guard.expression, guard.relation) for guard in answers]
    tested += [(size, ">=") for size in interiors(program)]
    divisors = (*numbers.divisors(), *sizes.evaluation.divisors())
    tested += [(divisor - number(1), ">=") for divisor in divisors]
    return Operands(
        sizes.evaluation.program(tested),
        pointers=table[0],
        element_nbytes=table[1],
        axes=table[2:-2].reshape(2, rank, len(columns)),
        buffer=table[-2:],
        lives=lives_of(program),
    )


def narrowed(values: Sequence[object]) -> Array:
    """Natural numbers in few bytes: programs keep these beside their weights."""
    numbers = np.array(values, np.int64)
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


def interiors(program: EmittedProgram) -> Iterator[Expression]:
    """Sizes around and in the boxes that fills leave out; none of them is negative."""
    for row in program.rows:
        if isinstance(row.step, Fill):
            for start, size, whole in zip(*row.step.interior, row.step.dst.shape, strict=True):
                yield from map(expression_of, (start, size, whole - start - size))


def lives_of(program: EmittedProgram) -> Array:
    """First and last row that uses each buffer of the arena."""
    count = 0 if program.order is None else len(program.order.buffers)
    lives = np.array([[len(program.rows), -1]] * count, np.int32).reshape(count, 2)
    for place, row in enumerate(program.calls):
        for pointer in (p for call in row.nested() for p in call.pointers):
            if pointer.place is Place.ARENA and count:
                first, last = lives[pointer.index]
                lives[pointer.index] = min(first, place), max(last, place)
    return lives


def slot_of(pointer: Pointer, arena: int) -> int:
    """The position of a pointer's base; those of buffers begin at ``arena``."""
    match pointer.place:
        case Place.CHECK:
            return 1
        case Place.ROW:
            return 2
        case Place.ARGUMENT:
            return 3
        case Place.CONSTANT:
            return OWN_BASES + pointer.index
        case Place.ARENA:
            return arena + pointer.index
    return 0


def loops_of(program: EmittedProgram) -> tuple[tuple[int, float], ...]:
    """For each loop the position of its trips among the pointers of all rows, and the work of a
    trip."""
    first = accumulate((len(row.pointers) for row in program.rows), initial=0)
    return tuple(
        (position, sum(CALL_WORK + float(likely(call.work)) for call in row.body))
        for position, row in zip(first, program.rows, strict=False)
        if row.body
    )


def shared_work(call: EmittedCall) -> float:
    """The work that threads may share: a loop runs on one."""
    return 0.0 if call.body else call.work


class _Sizes:
    """Sizes, each once."""

    def __init__(self) -> None:
        self.evaluation = Evaluation()

    def position(self, value: int) -> int:
        return self.evaluation.add(expression_of(value))

    def positions(self, values: Iterable[int]) -> tuple[int, ...]:
        return tuple(map(self.position, values))

    def end(self, name: str, view: View) -> End:
        """An input or output."""
        shape, strides = self.positions(view.shape), self.positions(view.strides)
        nbytes, is_state = self.position(view.buffer.nbytes), view.buffer.kind is BufferKind.STATE
        return End(name, view.type.dtype, shape, strides, nbytes, is_state)
