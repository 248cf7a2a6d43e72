"""A program at one shape as numbers, for callers that run it without Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantglow.support.arrays import Array

if TYPE_CHECKING:
    from quantglow.runtime.native.executable import Context, LlvmExecutable


@dataclass(frozen=True, eq=False)
class NativeCall:
    """All that a call needs beside a context: write the pointers, then call ``walk``.

    The word at ``positions[i]`` of a context's arguments is the address of input or output
    ``ends[i]``, inputs first, plus ``offsets[i]`` bytes.  ``walk(table, rows)`` is a C function.
    Behind it, ``checks`` words of a context's ``outside`` are 0 where all indices were in range,
    and have to be 0 for the next call.  All arrays are int64.

    walk       address of a C function of a pointer and an int64
    rows       of the table
    positions  of the pointers to inputs and outputs
    ends       which of these each leads to
    offsets    bytes from its beginning
    ranks      of the outputs
    dims       of all outputs, one after the other
    checks     number of words that tell of indices
    """

    executable: LlvmExecutable
    walk: int
    rows: int
    positions: Array
    ends: Array
    offsets: Array
    ranks: Array
    dims: Array
    checks: int

    def take_context(self) -> Context:
        """Memory of a running call, which lives until it is given back."""
        return self.executable.take_context()

    def give_back(self, context: Context) -> None:
        """Return the memory of a call."""
        self.executable.give_back(context)
