"""The check of plans: programs as they are made pass at every shape that they serve, altered ones
do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.runtime.native.loaded import LoadedProgram
from quantglow.runtime.native.plan_check import PlanCheck
from quantglow.runtime.native.program_store import from_json, to_json
from quantglow.runtime.native.program_table import OWN_BASES, ProgramTable
from quantglow.support.errors import FileFormatError
from tests.support.free_network import free_model, image

SHAPES = ((2, 3, 13, 18), (3, 3, 31, 17), (4, 3, 9, 20))


@pytest.fixture(scope="module")
def program() -> Any:
    """A program for all shapes whose buffers lie in an arena."""
    compiled: Any = qg.compile(free_model(), num_threads=1)
    for shape in SHAPES:
        compiled.run(None, {"x": image(shape)})
    generals = list(compiled.specialisations.generals)
    return max(generals, key=lambda general: len(general.loaded.table.buffers))


def bound(loaded: LoadedProgram, table: ProgramTable, values: dict[str, int]) -> None:
    """Bind a table as that of a program from a file."""
    replace(loaded, table=table, is_checked=True).bindings.at(values)


@pytest.mark.slow
def test_a_program_passes_where_it_serves(program: Any) -> None:
    served = 0
    for height in range(7, 40, 3):
        values = {**program.source.hints, "H": height, "W": height + 2}
        if program.guards.hold(values):
            bound(program.loaded, program.loaded.table, values)
            served += 1
    assert served > 3


def test_a_table_that_is_read_passes(program: Any) -> None:
    table = program.loaded.table
    again = from_json(json.loads(json.dumps(to_json(table))), table.target)
    bound(program.loaded, again, program.source.hints)
    np.testing.assert_array_equal(again.operands.axes, table.operands.axes)


def moved(table: ProgramTable, place: Callable[[ProgramTable], np.ndarray]) -> ProgramTable:
    """The table with another number of the program in all these places."""
    largest = max(range(len(table.numbers.results)), key=lambda at: values_of(table)[at])
    offsets = table.offsets.copy()
    offsets[place(table)] = largest
    return replace(table, offsets=offsets)


def values_of(table: ProgramTable) -> list[int]:
    return list(table.numbers.always_at(dict.fromkeys(table.numbers.symbols, 20)))


def without_order(table: ProgramTable) -> ProgramTable:
    assert table.order is not None
    below = tuple(() for _ in table.order.below)
    return replace(table, order=replace(table.order, below=below))


def with_operands(table: ProgramTable, **changes: Any) -> ProgramTable:
    return replace(table, operands=replace(table.operands, **changes))


ALTERED: dict[str, Callable[[ProgramTable], ProgramTable]] = {
    "offsets of operands": lambda t: moved(t, lambda t: t.operands.pointers),
    "offsets of inputs and outputs": lambda t: moved(t, lambda t: t.places.external),
    "offsets of constants": lambda t: moved(
        t, lambda t: (t.places.slots >= OWN_BASES) & (t.places.slots < OWN_BASES + t.constants)
    ),
    "no order": without_order,
    "longer elements": lambda t: with_operands(
        t, element_nbytes=t.operands.element_nbytes * np.int64(64)
    ),
    "steps": lambda t: with_operands(t, axes=t.operands.axes[[0, 0]]),
    "buffers": lambda t: with_operands(t, buffer=t.operands.buffer[::-1]),
    "items": lambda t: replace(
        t, numbers=replace(t.numbers, results=(*t.numbers.results[:-1], -1)),
        items=np.full_like(t.items, len(t.numbers.results) - 1),
    ),
    "a huge number": lambda t: with_operands(
        t, numbers=replace(t.operands.numbers, results=(2**60, *t.operands.numbers.results[1:]))
    ),
    "a condition": lambda t: with_operands(
        t, numbers=replace(t.operands.numbers, lines=(*t.operands.numbers.lines, "s0 < 0"))
    ),
    "a division by 0": lambda t: with_operands(
        t, numbers=replace(t.operands.numbers, lines=(*t.operands.numbers.lines, "1 // 0"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_program_is_refused(case: str, program: Any) -> None:
    altered = ALTERED[case](program.loaded.table)
    with pytest.raises(FileFormatError, match=r"cannot be run where .*Remedy"):
        bound(program.loaded, altered, program.source.hints)


def test_constants_that_are_too_short_are_refused(program: Any) -> None:
    table, bindings = program.loaded.table, program.loaded.bindings
    nothing = PlanCheck(table, np.zeros(table.constants, np.int64))
    with pytest.raises(FileFormatError, match="outside of its buffer"):
        nothing.checked(program.source.hints, bindings.unchecked)


def test_programs_of_this_process_are_not_checked(program: Any) -> None:
    assert replace(program.loaded, is_checked=False).bindings.checked is None


def test_calls_whose_pointers_are_out_of_order_are_not_read(program: Any) -> None:
    data = json.loads(json.dumps(to_json(program.loaded.table)))
    data["first"] = data["first"][::-1]
    with pytest.raises(ValueError, match="pointers of a call"):
        from_json(data, program.loaded.table.target)
