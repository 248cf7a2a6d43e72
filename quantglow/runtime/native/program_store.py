"""Compiled programs on disk: tables as checked JSON, constants, names of kernels.

``$QUANTGLOW_CACHE_DIR/programs`` lies beside the objects of kernels and follows the same rules
(``codegen.llvm.cache``): entries are named by a hash of all that they depend on, written whole or
not at all, checked against their hash when read, and removed when all together are too large.

An entry is a line of JSON and the bytes of small constants.  Large constants are entries of their
own, named by their content, which programs share.  Whatever is missing, damaged or of another
version is compiled again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

import numpy as np

from quantglow.codegen.llvm.cache import ObjectCache, cache_folder, drop_carried
from quantglow.codegen.llvm.call_profile import CallFacts
from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.symbolic.straight_line import StraightLine
from quantglow.ir.types import DType
from quantglow.memory.planner import ArenaOrder
from quantglow.runtime.jit.library import library
from quantglow.runtime.native.buffers import Constants
from quantglow.runtime.native.loaded import Arenas, LoadedProgram, allocator, as_words
from quantglow.runtime.native.program_table import (
    OWN_BASES,
    CallOperands,
    End,
    Places,
    ProgramTable,
)
from quantglow.support import debug
from quantglow.support.arrays import Array

OPERAND_ARRAYS = ("pointers", "axes", "element_nbytes", "buffer", "lives")
MOST_ELEMENT_NBYTES = 8

FOLDER = "programs"
LARGE_NBYTES = 1 << 16
"""Minimum size in bytes of constants that have an entry of their own."""
MOST_SHARE = 0.25
"""Maximum share of the cache that one program may take."""

DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of reading an entry that was altered."""

Facts = TypeVar("Facts")
"""Facts kept with a program, in types that ``json`` writes, and read by a function that
raises one of ``DAMAGED`` for others."""


@dataclass(frozen=True)
class ProgramStore:
    """Programs by their keys, in ``cache``.  All methods are thread-safe."""

    cache: ObjectCache = field(default_factory=lambda: ObjectCache(cache_folder(FOLDER)))

    def facts(self, key: str, read: Callable[[Any], Facts]) -> Facts | None:
        """Facts kept without a program; None where nothing usable is there."""
        if (entry := self._entry(key)) is None:
            return None
        with _usable(key):
            return read(entry[0]["facts"])
        return None

    def keep_facts(self, key: str, facts: object) -> None:
        """Keep facts without a program."""
        self._put(key, json.dumps({"facts": facts}).encode() + b"\n")

    def program(
        self,
        key: str,
        target: Target,
        threads: int,
        read: Callable[[Any], Facts],
        growth: int = 1,
    ) -> tuple[LoadedProgram, Facts] | None:
        """A program, loaded, and its facts; None where nothing usable is there."""
        if (entry := self._entry(key)) is None:
            return None
        with _usable(key), debug.time_stage("load program"):
            head, small = entry
            facts = read(head["facts"])
            loaded = self._loaded(head, small, target, threads, growth)
            return None if loaded is None else (loaded, facts)
        return None

    def keep(self, key: str, program: LoadedProgram, facts: object) -> None:
        """Keep a program; one that is too large is left out."""
        slack, constants = program.table.target.isa.slack_nbytes, program.constant_arrays
        if self.cache.folder is None or debug.verifying():
            return
        if sum(array.nbytes for array in constants) > MOST_SHARE * self.cache.most_nbytes:
            debug.log(2, f"program cache: {key} is too large")
            return
        places: list[tuple[int, str | int]] = []
        small = bytearray()
        for array in constants:
            data = array[: array.nbytes - slack]
            places.append((data.nbytes, self._place(data, small)))
        head = {
            "facts": facts,
            "table": to_json(program.table),
            "symbols": list(dict.fromkeys(program.symbols)),
            "kernels": number(program.symbols),
            "constants": places,
        }
        self._put(key, json.dumps(head).encode() + b"\n" + small)

    def _place(self, data: Array, small: bytearray) -> str | int:
        """The place of a constant: the hash of one in an entry of its own, or the position."""
        if data.nbytes < LARGE_NBYTES:
            small += data.tobytes()
            return len(small) - data.nbytes
        digest = hashlib.sha256(data.data).hexdigest()
        if not self.cache.has(_constant_name(digest)):
            self.cache.put(_constant_name(digest), data.tobytes())
        return digest

    def _put(self, key: str, entry: bytes) -> None:
        if not debug.verifying():
            self.cache.put(key, entry)

    def _entry(self, key: str) -> tuple[dict[str, Any], memoryview] | None:
        """The head and the small constants of an entry; None while verifying, which compiles all
        programs, or if somebody looks at how they are made."""
        if debug.verifying() or debug.shows_stages():
            return None
        entry = self.cache.get(key)
        if entry is None:
            return None
        end = entry.find(b"\n")
        with _usable(key):
            return dict(json.loads(entry[:end])), memoryview(entry)[end + 1 :]
        return None

    def _loaded(
        self, head: dict[str, Any], small: memoryview, target: Target, threads: int, growth: int
    ) -> LoadedProgram | None:
        """The program of an entry; None where a kernel or a constant is not there any more."""
        table = from_json(head["table"], target)
        names = list(map(str, head["symbols"]))
        symbols = tuple(names[int(number)] for number in head["kernels"])
        if len(symbols) != len(table.items) or len(head["constants"]) != table.constants:
            raise ValueError("the table has other rows or constants")
        if not library(target).load_symbols(names):
            return None
        allocate = allocator(target)
        constants = Constants(allocate, target.isa.slack_nbytes, shared=True)
        loaded = [self._constant(int(n), at, small, constants) for n, at in head["constants"]]
        arrays = tuple(array for array in loaded if array is not None)
        if len(arrays) < len(loaded):
            return None
        functions = as_words(library(target).find_addresses(symbols))
        arenas = Arenas(allocate, growth)
        return LoadedProgram(table, threads, symbols, functions, arrays, arenas, is_checked=True)

    def _constant(
        self, nbytes: int, place: object, small: memoryview, constants: Constants
    ) -> Array | None:
        """A constant in memory, None where its entry is missing.  Raises ``ValueError``."""
        digest = bytes.fromhex(place) if isinstance(place, str) else None
        if digest is not None:
            if (shared := constants.find_copy(digest)) is not None:
                return shared
            entry = self.cache.get(_constant_name(digest.hex()))
            if entry is None:
                return None
            data = memoryview(entry)
        else:
            at = int(str(place))
            data = small[max(0, at) : at + nbytes]
        if len(data) != nbytes:
            raise ValueError(f"a constant has {len(data)} bytes instead of {nbytes}")
        constant = constants.copy(np.frombuffer(data, np.uint8), digest)
        if digest is not None:
            drop_carried(_constant_name(digest.hex()))
        return constant


@contextmanager
def _usable(key: str) -> Iterator[None]:
    """Log why an entry that is read inside is of no use, and go on behind."""
    try:
        yield
    except DAMAGED as error:
        debug.log(1, f"program cache: {key} cannot be used: {error!r}")


def _constant_name(digest: str) -> str:
    """The name of the entry of a constant."""
    return f"constant_{digest}"


def number(symbols: tuple[str, ...]) -> list[int]:
    """The position of each symbol among the distinct ones."""
    order = {symbol: number for number, symbol in enumerate(dict.fromkeys(symbols))}
    return [order[symbol] for symbol in symbols]


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


def _operands_to_json(operands: CallOperands) -> dict[str, Any]:
    arrays = {name: getattr(operands, name).reshape(-1).tolist() for name in OPERAND_ARRAYS}
    return {"numbers": operands.numbers.to_json(), "rank": operands.axes.shape[1], **arrays}


def _operands(data: Any, pointers: int, buffers: int) -> CallOperands:
    """The operands of a program of so many pointers and buffers."""
    numbers, rank = StraightLine.from_json(data["numbers"]), _count(data["rank"])
    size, at = len(numbers.results), _array(data["pointers"], pointers)
    count = len(at)
    return CallOperands(
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
    positions = _positions(shape, size)
    at = _positions([nbytes], size)[0]
    return End(str(name), DType(dtype), positions, _positions(strides, size, len(positions)), at)


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
    array = np.array(data) if len(data) else np.zeros(0, np.int64)
    if array.dtype != np.int64 or array.ndim != 1 or length not in (None, len(array)):
        raise ValueError(f"{str(data)[:60]} is no list of {length} integers")
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < size:
        raise ValueError(f"a position is not below {size}")
    return array


def _floats(data: Sequence[Any], length: int) -> Array:
    floats = np.array(data, np.float64)
    if floats.shape != (length,) or not np.isfinite(floats).all():
        raise ValueError(f"{str(data)[:60]} is no list of {length} finite numbers")
    return floats
