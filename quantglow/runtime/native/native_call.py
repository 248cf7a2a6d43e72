"""A program at one shape as numbers, for callers that run it without Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.runtime.native.table_runner import CLAIM_WORDS, POOL, entries
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise


@dataclass(eq=False, repr=False)
class NativeContext(Concise):
    """Memory of one running call: the words of a ``NativeCall``, all int64.

    arguments  to which the pointers are written
    table      of calls, a row of four words for each
    outside    of the checks of indices
    state      what the threads of a call share; without words where there is one thread
    give_back  returns the memory that other programs may use
    """

    arguments: Array
    table: Array
    outside: Array
    give_back: Callable[[], None]
    state: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _claims: Array = field(init=False)

    def share(self) -> None:
        """Make what the threads of a call share."""
        self._claims = np.zeros((len(self.table), CLAIM_WORDS), np.int64)
        self.state = np.zeros(POOL["processors"] // 8, np.int64)
        self.state[POOL["claims"] // 8] = self._claims.ctypes.data


@dataclass(frozen=True, eq=False)
class NativeCall:
    """All that a call needs beside a context.

    The word at ``positions[i]`` of a context's arguments is the address of input or output
    ``ends[i]``, inputs first, plus ``offsets[i]`` bytes.  When these are written, one thread runs
    ``walk(table, rows)``.

    Several threads share a call with more ``threads``: one of them calls
    ``begin(state, table, rows)``, then each ``join(state, tid, threads)`` with a ``tid`` of its
    own, from 0 on.  Threads may come late: the others do the work of those that are missing, but
    that of ``tid`` 0.  The results are there, and the context is free, when all have returned.

    Behind it, ``checks`` words of a context's ``outside`` are 0 where all indices were in range,
    and have to be 0 for the next call.  All arrays are int64, and all functions those of C.

    make       a new context, which lives until it is given back
    rows       of the table
    threads    maximum number of threads of a call
    positions  of the pointers to inputs and outputs
    ends       which of these each leads to
    offsets    bytes from its beginning
    ranks      of the outputs
    dims       of all outputs, one after the other
    checks     number of words that tell of indices
    """

    target: Target
    make: Callable[[], NativeContext]
    rows: int
    threads: int
    positions: Array
    ends: Array
    offsets: Array
    ranks: Array
    dims: Array
    checks: int

    @property
    def walk(self) -> int:
        """The address of a function of a pointer and an int64."""
        return address_of(entries(self.target).run_alone)

    @property
    def begin(self) -> int:
        """The address of a function of two pointers and an int64."""
        return address_of(entries(self.target).begin)

    @property
    def join(self) -> int:
        """The address of a function of a pointer and two int64."""
        return address_of(entries(self.target).join)

    def new_context(self) -> NativeContext:
        """Memory of a running call, which lives until it is given back."""
        context = self.make()
        if self.threads > 1:
            context.share()
        return context


def address_of(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def shapes_as_words(shapes: list[tuple[int, ...]]) -> tuple[Array, Array]:
    """The ranks of some shapes, and their dimensions one after the other."""
    ranks = np.array(list(map(len, shapes)), np.int64)
    return ranks, np.array([size for shape in shapes for size in shape], np.int64)


def end_order(inputs: list[str], program_inputs: tuple[str, ...], outputs: int) -> Array:
    """The numbers of ``program_inputs`` among ``inputs``, then those of the outputs behind them."""
    order = [*map(inputs.index, program_inputs), *range(len(inputs), len(inputs) + outputs)]
    return np.array(order, np.int64)
