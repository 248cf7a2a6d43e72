"""Tables of programs as JSON, and read back.  Texts that are read are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.runtime.call_times import CallFacts
from quantglow.backends.llvm.runtime.program_table import (
    OWN_BASES,
    End,
    Operands,
    Places,
    ProgramTable,
)
from quantglow.foreign_types import Array
from quantglow.memory.arena_order import ArenaOrder
from quantglow.symbolic.straight_line import StraightLine
from quantglow.types import DType

OPERAND_ARRAYS = ("pointers", "axes", "element_nbytes", "buffer", "lives")
MOST_ELEMENT_NBYTES = 8


def to_json(table: ProgramTable) -> dict[str, Any]:
    """All but the target, in types that ``json`` writes."""
    places = table.places
    return {
        "count": table.count,
        "constants": table.constants,
        "slots": places.slots.tolist(),
        "external": places.external.tolist(),
        "ends": places.ends.tolist(),
        "first": places.first.tolist(),
        "numbers": table.numbers.to_json(),
        "offsets": table.offsets.tolist(),
        "items": table.items.tolist(),
        "work_of_item": table.work_of_item.tolist(),
        "inputs": [astuple(end) for end in table.inputs],
        "outputs": [astuple(end) for end in table.outputs],
        "lengths": table.lengths,
        "indexed": table.indexed,
        "loops": table.loops,
        "operands": _operands_to_json(table.operands),
        "calls": [astuple(call) for call in table.calls],
        "arena_nbytes": table.arena_nbytes,
        "buffers": table.buffers,
        "free": table.free,
        "below": None if table.order is None else table.order.below,
    }


def from_json(data: Any, target: Target) -> ProgramTable:
    """The table for a target.  Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    numbers = StraightLine.from_json(data["numbers"])
    size = len(numbers.results)
    pointers, rows = len(data["offsets"]), len(data["items"])
    inputs, outputs = (
        tuple(_end(end, size) for end in data[name]) for name in ("inputs", "outputs")
    )
    buffers = _positions(data["buffers"], size)
    bases = OWN_BASES + _count(data["constants"]) + max(1, len(buffers))
    places = Places(
        _array(data["slots"], bases, pointers),
        _array(data["external"], pointers),
        _array(data["ends"], len(inputs) + len(outputs), len(data["external"])),
        _array(data["first"], pointers + 1, rows),
    )
    if (np.diff(places.first) < 0).any():
        raise ValueError("the pointers of a call lie before those of the call above it")
    indexed = tuple(map(str, data["indexed"]))
    return ProgramTable(
        target,
        _count(data["count"], rows),
        _count(data["constants"]),
        places,
        numbers,
        _array(data["offsets"], size),
        _array(data["items"], size),
        _floats(data["work_of_item"], rows),
        inputs,
        outputs,
        _positions(data["lengths"], size, len(indexed)),
        indexed,
        tuple((_count(at, pointers - 1), float(work)) for at, work in data["loops"]),
        _operands(data["operands"], pointers, len(buffers)),
        _calls(data["calls"], data["count"]),
        _count(data["arena_nbytes"]),
        buffers,
        _positions(data["free"], size),
        _order(data["below"], len(buffers)),
    )


def _operands_to_json(operands: Operands) -> dict[str, Any]:
    arrays = {name: getattr(operands, name).reshape(-1).tolist() for name in OPERAND_ARRAYS}
    return {"numbers": operands.numbers.to_json(), "rank": operands.axes.shape[1], **arrays}


def _operands(data: Any, pointers: int, buffers: int) -> Operands:
    """The operands of a program of so many pointers and buffers."""
    numbers, rank = StraightLine.from_json(data["numbers"]), _count(data["rank"])
    size, at = len(numbers.results), _array(data["pointers"], pointers)
    count = len(at)
    return Operands(
        numbers,
        at,
        _array(data["axes"], size, 2 * rank * count).reshape(2, rank, count),
        _array(data["element_nbytes"], MOST_ELEMENT_NBYTES + 1, count),
        _array(data["buffer"], size, 2 * count).reshape(2, count),
        np.array(data["lives"], np.int32).reshape(buffers, 2),
    )


def _order(below: Any, count: int) -> ArenaOrder | None:
    if below is None:
        return None
    if len(below) != count:
        raise ValueError(f"an order of {len(below)} buffers instead of {count}")
    return ArenaOrder(tuple(_positions(others, place) for place, others in enumerate(below)))


def _calls(data: Any, count: int) -> tuple[CallFacts, ...]:
    """Figures of ``count`` rows."""
    if len(data) != count:
        raise ValueError(f"figures of {len(data)} calls instead of {count}")
    return tuple(
        CallFacts(
            name=str(name),
            op=str(op),
            label=str(label),
            work=float(work),
            macs=_count(macs),
            nbytes=_count(nbytes),
            is_integer=bool(is_integer),
        )
        for name, op, label, work, macs, nbytes, is_integer in data
    )


def _end(data: Any, size: int) -> End:
    name, dtype, shape, strides, nbytes, is_state = data
    if is_state:
        raise ValueError("programs of states are not kept")
    found = _positions(shape, size)
    at = _positions([nbytes], size)[0]
    return End(str(name), DType(dtype), found, _positions(strides, size, len(found)), at)


def _count(value: Any, most: int | None = None) -> int:
    """A natural number.  Raises ``ValueError``."""
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def _positions(data: Any, size: int, length: int | None = None) -> tuple[int, ...]:
    """Numbers below a size, of this length.  Raises ``TypeError`` or ``ValueError``."""
    return tuple(_array(data, size, length).tolist())


def _array(data: Any, size: int, length: int | None = None) -> Array:
    """The same as an array."""
    found = np.array(data) if len(data) else np.zeros(0, np.int64)
    if found.dtype != np.int64 or found.ndim != 1 or length not in (None, len(found)):
        raise ValueError(f"{str(data)[:60]} is no list of {length} integers")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < size:
        raise ValueError(f"a position is not below {size}")
    return found


def _floats(data: Sequence[Any], length: int) -> Array:
    found = np.array(data, np.float64)
    if found.shape != (length,) or not np.isfinite(found).all():
        raise ValueError(f"{str(data)[:60]} is no list of {length} finite numbers")
    return found
