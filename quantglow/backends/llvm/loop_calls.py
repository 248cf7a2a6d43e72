"""Loops as rows of the table of calls: a kernel that walks the rows of the body.

The rows of all bodies lie behind those of the program, in one table.  The arguments of a loop have
the base and the stride of each pointer that moves, and where the call in the body reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from quantglow.backends.llvm.emitted import EmittedCall, Place, Pointer
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.table_walk import ENTRY_NBYTES, LOOP
from quantglow.instr.program import Repeat
from quantglow.symbolic.size import likely

Moving = tuple[int, int, int]
"""The call in the body, the pointer of it, and bytes by which it moves in each trip."""


def loop_call(
    step: Repeat, body: Sequence[EmittedCall], moving: Sequence[Moving], condition: Pointer
) -> EmittedCall:
    """The row of a loop; ``with_rows`` will say where its body and the moving pointers lie."""
    words = [
        Pointer(Place.SIZE, 0, step.trips),
        Pointer(Place.ROW),
        Pointer(Place.SIZE, 0, len(body)),
        Pointer(Place.SIZE, 0, len(moving)),
        condition,
    ]
    for call, number, nbytes in moving:
        words += [
            body[call].pointers[number],
            Pointer(Place.SIZE, 0, nbytes),
            Pointer(Place.ARGUMENT, call, 8 * number),
        ]
    trips = likely(step.trips) if step.condition is None else 1
    work = trips * sum(call.work for call in body)
    kernel = KernelCall(LOOP, (), items=1, work=work, label="loop", facts="")
    nbytes = trips * sum(call.nbytes for call in body)
    return EmittedCall(step, kernel, tuple(words), nbytes, tuple(body))


def with_rows(calls: Sequence[EmittedCall]) -> tuple[EmittedCall, ...]:
    """The rows of a table: calls, then those in bodies, with the places of all of them known."""
    rows = list(calls)
    bodies: dict[int, int] = {}
    for number, call in enumerate(rows):  # rows grow meanwhile
        if call.body:
            bodies[number] = len(rows)
            rows += call.body
    first = list(accumulate((len(call.pointers) for call in rows), initial=0))
    return tuple(
        replace(call, pointers=tuple(_placed(call.pointers, bodies[number], first)))
        if number in bodies
        else call
        for number, call in enumerate(rows)
    )


def _placed(pointers: Sequence[Pointer], row: int, first: Sequence[int]) -> Iterator[Pointer]:
    """The pointers of a loop whose body begins at ``row``; ``first``: positions of the first
    pointers of rows."""
    for pointer in pointers:
        if pointer.place is Place.ROW:
            yield Pointer(Place.ROW, 0, ENTRY_NBYTES * row)
        elif pointer.place is Place.ARGUMENT:
            position = 8 * first[row + pointer.index] + pointer.offset_bytes
            yield Pointer(Place.ARGUMENT, 0, position)
        else:
            yield pointer
