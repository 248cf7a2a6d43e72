"""Memory of a planned program: each buffer lies at an offset from one of the bases of a call.

Bases are the constants, the arena, then every input and every output in the program's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from quantglow.ir.program.program import Buffer, BufferKind, Program, View
from quantglow.ir.symbolic.size import Dim
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

ALIGNMENT = 64
"""Alignment of buffers in bytes, but those of the caller: a cache line, and the widest vector."""

CONSTANTS, ARENA = 0, 1
"""Positions among the bases; those of inputs and outputs follow."""

Bases = Sequence[Array]
"""The memory of a call, in bytes (uint8): constants and inputs are read-only."""


class Offsets(Protocol):
    """A memory plan: where temporaries are in the arena, in bytes."""

    @property
    def offsets(self) -> Mapping[Buffer, int]: ...

    @property
    def peak_nbytes(self) -> int: ...


class Place(NamedTuple):
    """A position among the bases, and an offset from that base."""

    base: int
    offset_bytes: Dim


@dataclass(frozen=True, repr=False)
class ProgramLayout(Concise):
    """The places of all buffers of a program, by its memory plan."""

    program: Program
    plan: Offsets

    def place(self, view: View) -> Place:
        """The first element of a view: index (0, 0, …)."""
        base, offset_bytes = self.places[view.buffer]
        return Place(base, offset_bytes + view.offset_bytes)

    @cached_property
    def places(self) -> dict[Buffer, Place]:
        """The place of each buffer."""
        places = {buffer: Place(ARENA, at) for buffer, at in self.plan.offsets.items()}
        places |= {buffer: Place(CONSTANTS, at) for buffer, at in self._constant_offsets.items()}
        ends = (*self.program.inputs, *self.program.outputs)
        return places | {
            view.buffer: Place(base, 0) for base, (_, view) in enumerate(ends, start=ARENA + 1)
        }

    @cached_property
    def _constant_offsets(self) -> dict[Buffer, int]:
        buffers = [b for b in self.program.buffers if b.kind is BufferKind.CONSTANT]
        sizes = [-(-int(buffer.nbytes) // ALIGNMENT) * ALIGNMENT for buffer in buffers]
        return dict(zip(buffers, accumulate(sizes, initial=0), strict=False))

    @cached_property
    def constants(self) -> Array:
        """All constants in one block."""
        offsets = self._constant_offsets
        block = aligned_bytes(max((at + int(b.nbytes) for b, at in offsets.items()), default=0))
        for buffer, at in offsets.items():
            assert buffer.value is not None
            value = _bytes_of(buffer.value)
            block[at : at + value.size] = value
        return _read_only(block)

    def call(self, code: Callable[[Bases], object], feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the program's order, of code that runs the program on bases."""
        inputs = [_read_only(_bytes_of(feeds[name])) for name, _ in self.program.inputs]
        outputs = [np.empty(int(view.buffer.nbytes), np.uint8) for _, view in self.program.outputs]
        bases = (self.constants, aligned_bytes(self.plan.peak_nbytes), *inputs, *outputs)
        code(bases)
        return [self.array(view, bases) for _, view in self.program.outputs]

    def array(self, view: View, bases: Bases) -> Array:
        """The NumPy array that a view describes."""
        kind = view.type.dtype.numpy
        if view.type.is_empty:
            return np.empty(view.shape, kind)
        base, offset_bytes = self.place(view)
        strides = tuple(stride * kind.itemsize for stride in view.strides)
        return np.ndarray(view.shape, kind, bases[base].data, offset_bytes, strides)


def aligned_bytes(count: int) -> Array:
    """Uninitialized memory at a multiple of ``ALIGNMENT``."""
    block = np.empty(count + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + count]


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _read_only(block: Array) -> Array:
    """A view that is not to be written."""
    view = block.view()
    view.flags.writeable = False
    return view
