"""Programs that run one after the other without the interpreter of Python in between.

Each has a table of calls; the tables of all are one.  Inputs and outputs are parts of buffers whose
addresses are set before a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from quantglow.backends.llvm.runtime.executable import Context, LlvmExecutable
from quantglow.backends.llvm.runtime.threads import run_table
from quantglow.concise import Concise
from quantglow.errors import OutOfRangeError
from quantglow.foreign_types import Array

Ends = Sequence[tuple[int, int]]
"""For each input, then each output of a program: the number of a buffer, and bytes from its
beginning."""


@dataclass(eq=False, repr=False)
class Chain(Concise):
    """Programs in the order of their runs, in one arena.  One run at a time.

    arguments  the pointers of all calls
    outside    the checks of indices of all programs
    places     of the pointers to inputs and outputs, the buffer of each, and bytes from its begin
    rows       calls of the first programs, up to each of them
    """

    runs: tuple[LlvmExecutable, ...]
    arena: Array
    contexts: tuple[Context, ...]
    arguments: Array
    outside: Array
    table: Array
    places: tuple[Array, Array, Array]
    rows: tuple[int, ...]

    @staticmethod
    def of(runs: Sequence[LlvmExecutable], ends: Sequence[Ends]) -> Chain:
        """The chain of some programs; ``ends`` are those of each."""
        largest = max(range(len(runs)), key=lambda n: runs[n].arena_nbytes)
        arena = runs[largest].loaded.arenas.allocate(runs[largest].arena_nbytes)
        counts = [len(run.table.places.slots) for run in runs]
        checks = [len(run.table.indexed) for run in runs]
        arguments = np.zeros(sum(counts), np.int64)
        outside = np.zeros(sum(checks), np.int64)
        first = list(accumulate(counts, initial=0))
        asked = list(accumulate(checks, initial=0))
        contexts = tuple(
            run.context_on(
                arena, arguments[first[n] : first[n + 1]], outside[asked[n] : asked[n + 1]]
            )
            for n, run in enumerate(runs)
        )
        pairs = [
            np.array(end, np.int64).reshape(-1, 2)[run.table.places.ends]
            for run, end in zip(runs, ends, strict=True)
        ]
        positions = [first[n] + run.table.places.external for n, run in enumerate(runs)]
        offsets = [
            pair[:, 1] + run.binding.offsets[run.table.places.external]
            for run, pair in zip(runs, pairs, strict=True)
        ]
        places = (
            np.concatenate(positions),
            np.concatenate([pair[:, 0] for pair in pairs]),
            np.concatenate(offsets),
        )
        table = np.concatenate([context.table for context in contexts])
        rows = tuple(accumulate((len(context.table) for context in contexts), initial=0))
        return Chain(tuple(runs), arena, contexts, arguments, outside, table, places, rows)

    def point(self, bases: Array) -> None:
        """Let inputs and outputs be parts of buffers at these addresses."""
        positions, buffers, offsets = self.places
        self.arguments[positions] = bases[buffers] + offsets

    def run(self, begin: int, end: int) -> None:
        """Run the programs from ``begin`` to ``end``.  Raises ``OutOfRangeError``."""
        crew = max(run.crew for run in self.runs[begin:end])
        run_table(self.runs[0].target, crew, self.table[self.rows[begin] : self.rows[end]])
        if self.outside.any():
            raise self._index_error()

    def _index_error(self) -> OutOfRangeError:
        """The error of the first index that was out of range."""
        for run, context in zip(self.runs, self.contexts, strict=True):
            if (error := run.index_error(context)) is not None:
                self.outside[:] = 0
                return error
        raise AssertionError("no index is out of range")
