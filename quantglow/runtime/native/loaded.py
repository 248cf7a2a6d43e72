"""A loaded program: kernels, constants and arenas, which its executables at all shapes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.runtime.native.buffers import (
    HAS_LARGE_PAGES,
    Allocate,
    LargePages,
    aligned_address,
    aligned_bytes,
)
from quantglow.runtime.native.program_table import Bindings, ProgramTable
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

if TYPE_CHECKING:
    from quantglow.codegen.llvm.emitted import EmittedProgram

NO_ADDRESSES: Mapping[int, int] = {}

GROWTH = 2
"""A new arena of a program for all shapes is at least so many times as large as the largest before.
"""


@dataclass
class Arenas:
    """Memory for the values of running inferences; each arena serves one at a time.

    ``growth``: a new arena is so many times as large as the largest one, if that was too small.
    Arenas are never given back, so that tables may point into them: with a growth of 2 all of them
    take at most twice the memory of the largest.  Keys are the ``id`` of each, which takes less
    time to ask for than its address.
    """

    allocate: Allocate
    growth: int = 1
    _idle: dict[int, Array] = field(default_factory=dict)
    _nbytes: dict[int, int] = field(default_factory=dict)

    def take(self, nbytes: int) -> Array:
        """An arena of at least so many bytes that nobody uses."""
        for name, arena in list(self._idle.items()):
            # Another thread may take it after the question.
            if self._nbytes[name] >= nbytes and self._idle.pop(name, None) is not None:
                return arena
        largest = max(self._nbytes.values(), default=0)
        if self.growth > 1:
            nbytes = largest if nbytes <= largest else max(nbytes, self.growth * largest)
        arena = self.allocate(nbytes)
        self._nbytes[id(arena)] = nbytes
        return arena

    def give(self, arena: Array) -> None:
        """Return an arena that was taken."""
        self._idle[id(arena)] = arena


@dataclass(frozen=True, eq=False, repr=False)
class LoadedProgram(Concise):
    """A program in memory.

    table            its rows
    threads          maximum number of threads of a run
    symbols          names of the code of each row's kernel
    functions        their addresses
    constant_arrays  constants, with slack behind them
    arenas           memory for the values of a run
    emitted          the program that it was loaded from; None if its table was read
    is_checked       whether its plan is checked at each shape: it comes from a file
    """

    table: ProgramTable
    threads: int
    symbols: tuple[str, ...]
    functions: Array
    constant_arrays: tuple[Array, ...]
    arenas: Arenas
    emitted: EmittedProgram | None = None
    is_checked: bool = False

    @cached_property
    def constants(self) -> Array:
        """Addresses of the constants."""
        return array_addresses(self.constant_arrays)

    @cached_property
    def bindings(self) -> Bindings:
        """The numbers of the program at each shape."""
        if not self.is_checked:
            return Bindings(self.table)
        # Only here: a process that reads no program checks none.
        from quantglow.runtime.native.plan_check import PlanCheck

        sizes = np.array([array.nbytes for array in self.constant_arrays], np.int64)
        return Bindings(self.table, PlanCheck(self.table, sizes - self.slack_nbytes).checked)

    @property
    def slack_nbytes(self) -> int:
        """Bytes behind each constant that kernels may read."""
        return self.table.target.isa.slack_nbytes


def as_words(addresses: Sequence[int]) -> Array:
    """Addresses as they stand in a table."""
    return np.array(addresses, np.uint64).view(np.int64)


def array_addresses(arrays: Sequence[Array], by_id: Mapping[int, int] = NO_ADDRESSES) -> Array:
    """Addresses of arrays; ``by_id`` has some of them, by ``id``."""
    addresses = [by_id.get(id(array)) or aligned_address(array) for array in arrays]
    return np.array(addresses, np.int64)


def allocator(target: Target) -> Allocate:
    """Makes the memory of a program."""
    return LargePages() if target.core.large_pages and HAS_LARGE_PAGES else aligned_bytes
