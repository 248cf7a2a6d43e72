"""Compiled programs on disk: their tables, packed constants, and the names of their kernels.

``$QUANTGLOW_CACHE_DIR/programs`` lies beside the objects of kernels and follows the same rules
(``jit.cache``): entries are named by a hash of all that they depend on, written whole or not at
all, checked against their hash when read, and removed when all together are too large.

An entry is a line of JSON and the bytes of small constants.  Large constants are entries of their
own, named by their content, which programs share.  Whatever is missing, damaged or of another
version is compiled again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from quantglow import debug
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.cache import ObjectCache, cache_folder
from quantglow.backends.llvm.jit.carried import drop_carried
from quantglow.backends.llvm.jit.library import library
from quantglow.backends.llvm.runtime.buffers import Constants
from quantglow.backends.llvm.runtime.loaded import Arenas, LoadedProgram, allocator, as_words
from quantglow.backends.llvm.runtime.stored_table import from_json, to_json
from quantglow.foreign_types import Array

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
        with usable(key):
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
        with usable(key):
            head, small = entry
            facts = read(head["facts"])
            loaded = self._loaded(head, small, target, threads, growth)
            return None if loaded is None else (loaded, facts)
        return None

    def keep(self, key: str, program: LoadedProgram, facts: object) -> None:
        """Keep a program; one that is too large is left out."""
        slack, constants = program.table.target.isa.slack_nbytes, program.kept
        if self.cache.folder is None or debug.verifying():
            return
        if sum(array.nbytes for array in constants) > MOST_SHARE * self.cache.most_nbytes:
            debug.log(2, f"program cache: {key} is too large")
            return
        places: list[tuple[int, str | int]] = []
        small = bytearray()
        for array in constants:
            data = array[: array.nbytes - slack]
            places.append((data.nbytes, self._placed(data, small)))
        head = {
            "facts": facts,
            "table": to_json(program.table),
            "symbols": list(dict.fromkeys(program.symbols)),
            "kernels": numbered(program.symbols),
            "constants": places,
        }
        self._put(key, json.dumps(head).encode() + b"\n" + small)

    def _placed(self, data: Array, small: bytearray) -> str | int:
        """The place of a constant: the hash of one in an entry of its own, or the position."""
        if data.nbytes < LARGE_NBYTES:
            small += data.tobytes()
            return len(small) - data.nbytes
        digest = hashlib.sha256(data.data).hexdigest()
        if not self.cache.has(constant_name(digest)):
            self.cache.put(constant_name(digest), data.tobytes())
        return digest

    def _put(self, key: str, entry: bytes) -> None:
        if not debug.verifying():
            self.cache.put(key, entry)

    def _entry(self, key: str) -> tuple[dict[str, Any], memoryview] | None:
        """The head and the small constants of an entry; None while verifying, which compiles all
        programs, or if somebody looks at how they are made."""
        if debug.verifying() or debug.shows_stages():
            return None
        found = self.cache.get(key)
        if found is None:
            return None
        end = found.find(b"\n")
        with usable(key):
            return dict(json.loads(found[:end])), memoryview(found)[end + 1 :]
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
        kept = [self._constant(int(n), at, small, constants) for n, at in head["constants"]]
        found = tuple(array for array in kept if array is not None)
        if len(found) < len(kept):
            return None
        functions = as_words(library(target).addresses_of(symbols))
        arenas = Arenas(allocate, growth)
        return LoadedProgram(table, threads, symbols, functions, found, arenas, is_checked=True)

    def _constant(
        self, nbytes: int, place: object, small: memoryview, constants: Constants
    ) -> Array | None:
        """A constant in memory, None where its entry is missing.  Raises ``ValueError``."""
        digest = bytes.fromhex(place) if isinstance(place, str) else None
        if digest is not None:
            known = constants.known(digest)
            if known is not None:
                return known
            entry = self.cache.get(constant_name(digest.hex()))
            if entry is None:
                return None
            data = memoryview(entry)
        else:
            at = int(str(place))
            data = small[max(0, at) : at + nbytes]
        if len(data) != nbytes:
            raise ValueError(f"a constant has {len(data)} bytes instead of {nbytes}")
        made = constants.copy(np.frombuffer(data, np.uint8), digest)
        if digest is not None:
            drop_carried(constant_name(digest.hex()))
        return made


@contextmanager
def usable(key: str) -> Iterator[None]:
    """Log why an entry that is read inside is of no use, and go on behind."""
    try:
        yield
    except DAMAGED as error:
        debug.log(1, f"program cache: {key} cannot be used: {error!r}")


def constant_name(digest: str) -> str:
    """The name of the entry of a constant."""
    return f"constant_{digest}"


def numbered(symbols: tuple[str, ...]) -> list[int]:
    """The position of each symbol among the distinct ones."""
    order = {symbol: number for number, symbol in enumerate(dict.fromkeys(symbols))}
    return [order[symbol] for symbol in symbols]
