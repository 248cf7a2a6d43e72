"""The check of plans refuses at a later shape what it refuses at the first one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.ir.symbolic.expression import Values
from quantglow.runtime.native.plan_check import PlanCheck
from quantglow.runtime.native.program_table import Bindings, ProgramTable
from quantglow.support.errors import FileFormatError
from tests.support import effort
from tests.support.decoder import Decoder, decoder_model
from tests.support.free_network import free_model, image


@cache
def programs() -> list[tuple[Any, list[Values]]]:
    """Programs for all shapes, and values that they serve."""
    images: Any = qg.compile(free_model(), num_threads=1)
    for shape in ((2, 3, 13, 18), (3, 3, 31, 17), (4, 3, 9, 20)):
        images.run(None, {"x": image(shape)})
    config = Decoder(layers=1)
    decoder: Any = qg.compile(decoder_model(config), num_threads=1)
    rng = np.random.default_rng(0)
    for past in (3, 5, 9):
        cache_of = {
            name: rng.standard_normal((1, config.kv_heads, past, config.head)).astype(np.float32)
            for name in config.empty_cache(1)
        }
        decoder.run(None, config.feeds(np.array([[3]]), cache_of))
    collected = []
    for compiled in (images, decoder):
        for general in compiled.specialisations.generals:
            hints = dict(general.source.hints)
            near = [{k: max(1, v + step) for k, v in hints.items()} for step in range(-6, 40, 3)]
            served = [values for values in near if general.guards.hold(values)]
            if len(served) > 2 and general.loaded.table.order is not None:
                collected.append((general, served))
    return collected


def passes(table: ProgramTable, check: PlanCheck, bindings: Bindings, values: Values) -> bool:
    try:
        check.checked(values, bindings.unchecked)
    except FileFormatError:
        return False
    return True


def constants_of(program: Any) -> np.ndarray:
    nbytes = np.array([array.nbytes for array in program.loaded.constant_arrays], np.int64)
    return nbytes - program.loaded.slack_nbytes


FIELDS = ("axes", "buffer", "offsets", "places", "element_nbytes", "buffers")


@st.composite
def altered(draw: st.DrawFn, table: ProgramTable) -> ProgramTable:
    """A table with another position in a place or two."""
    for _ in range(draw(st.integers(0, 2))):
        operands, field = table.operands, draw(st.sampled_from(FIELDS))
        column = draw(st.integers(0, len(operands.pointers) - 1))
        if field in ("axes", "buffer", "element_nbytes"):
            array = getattr(operands, field).copy()
            row = array.reshape(-1, array.shape[-1])
            most = len(operands.numbers.results) - 1
            row[draw(st.integers(0, len(row) - 1)), column] = draw(st.integers(0, most))
            table = replace(table, operands=replace(operands, **{field: array}))
        elif field == "offsets":
            array, most = table.offsets.copy(), len(table.numbers.results) - 1
            array[operands.pointers[column]] = draw(st.integers(0, most))
            table = replace(table, offsets=array)
        elif field == "places":
            places = table.places
            array = places.slots.copy()
            array[operands.pointers[column]] = draw(st.sampled_from(places.slots.tolist()))
            table = replace(table, places=replace(places, slots=array))
        else:
            sizes = list(table.buffers)
            place = draw(st.integers(0, len(sizes) - 1))
            sizes[place] = draw(st.sampled_from(sizes))
            table = replace(table, buffers=tuple(sizes))
    return table


@pytest.mark.slow
@effort.moderate
@given(st.data())
def test_first_and_later_checks_refuse_the_same_tables(data: st.DataObject) -> None:
    program, served = data.draw(st.sampled_from(programs()))
    table = data.draw(altered(program.loaded.table))
    constants = constants_of(program)
    bindings, later = Bindings(table), PlanCheck(table, constants)
    for values in data.draw(st.lists(st.sampled_from(served), min_size=2, max_size=6)):
        expected = passes(table, PlanCheck(table, constants), bindings, values)
        actual = passes(table, later, bindings, values)
        assert actual == expected, values


def test_programs_as_they_are_pass_at_all_shapes() -> None:
    for program, served in programs():
        table = program.loaded.table
        bindings, check = Bindings(table), PlanCheck(table, constants_of(program))
        assert all(passes(table, check, bindings, values) for values in served)
