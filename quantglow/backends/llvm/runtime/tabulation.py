"""Emitted programs as tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from quantglow.backends.llvm.emitted import CALL_WORK, EmittedCall, EmittedProgram, Place, Pointer
from quantglow.backends.llvm.runtime.profiler import facts_of
from quantglow.backends.llvm.runtime.program_table import OWN_BASES, End, Places, ProgramTable
from quantglow.instr.program import View
from quantglow.symbolic.evaluation import Evaluation
from quantglow.symbolic.size import expression_of, is_free, likely


def table_of(program: EmittedProgram) -> ProgramTable:
    """The table of an emitted program."""
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
        return End(name, view.type.dtype, shape, strides, self.position(view.buffer.nbytes))
