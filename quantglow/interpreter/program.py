"""The reference backend: runs a planned program in one arena, in NumPy.

A wrong view, lifetime or offset shows here, before any machine code is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quantglow.ir.program.program import (
    Alloc,
    Buffer,
    BufferKind,
    Compute,
    Copy,
    Dealloc,
    Fill,
    Instruction,
    Program,
    Repeat,
    View,
)
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise

POISON = 0xA5
"""The byte a buffer holds when its life begins: reading it unwritten gives visible nonsense."""


class Offsets(Protocol):
    """A memory plan: where buffers are in the arena, in bytes."""

    @property
    def offsets(self) -> Mapping[Buffer, int]: ...

    @property
    def peak_nbytes(self) -> int: ...


@dataclass(frozen=True, repr=False)
class ReferenceExecutable(Concise):
    """A program and its memory plan, ready to run."""

    program: Program
    plan: Offsets

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds must match its inputs."""
        memory = self._memory(feeds)
        for step in self.program.instructions:
            _execute(step, memory)
        return [_view_array(view, memory).copy() for _, view in self.program.outputs]

    def _memory(self, feeds: Mapping[str, Array]) -> dict[Buffer, Array]:
        arena = np.full(self.plan.peak_nbytes, POISON, np.uint8)
        memory: dict[Buffer, Array] = {}
        for buffer in self.program.buffers:
            if buffer.kind is BufferKind.TEMP:
                offset = self.plan.offsets[buffer]
                memory[buffer] = arena[offset : offset + buffer.nbytes]
            elif buffer.kind is BufferKind.CONSTANT:
                assert buffer.value is not None
                memory[buffer] = _as_bytes(buffer.value)
            else:
                memory[buffer] = np.full(buffer.nbytes, POISON, np.uint8)
        for name, view in self.program.inputs:
            memory[view.buffer] = _as_bytes(np.ascontiguousarray(feeds[name]))
        return memory


def _as_bytes(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), np.uint8)


def _view_array(view: View, memory: Mapping[Buffer, Array]) -> Array:
    """The NumPy array that a view describes."""
    if view.type.is_empty:
        return np.empty(view.shape, view.type.dtype.numpy)
    itemsize = view.type.dtype.nbytes
    return np.ndarray(
        view.shape,
        view.type.dtype.numpy,
        memory[view.buffer].data,
        view.offset * itemsize,
        tuple(s * itemsize for s in view.strides),
    )


def _execute(step: Instruction, memory: Mapping[Buffer, Array]) -> None:
    """Run one instruction."""
    match step:
        case Alloc(buffer=buffer):
            memory[buffer][:] = POISON
        case Copy(src=src, dst=dst):
            _view_array(dst, memory)[...] = _view_array(src, memory)
        case Fill(value=value):
            for box in step.boxes():
                _view_array(box, memory)[...] = value
        case Compute(op=op, inputs=inputs, output=output):
            result = op.evaluate(*(_view_array(view, memory) for view in inputs))
            _view_array(output, memory)[...] = result
        case Repeat():
            repeat(step, memory)
        case Dealloc():
            pass


def repeat(step: Repeat, memory: Mapping[Buffer, Array]) -> None:
    """Run a loop; views of loops inside of it do not move with it."""
    for trip in range(step.trips):
        if step.condition is not None and not _view_array(step.condition, memory).item():
            break
        for inner in step.body:
            moves = not isinstance(inner, Repeat)
            _execute(inner.mapped(lambda v: v.at_trip(trip)) if moves else inner, memory)  # noqa: B023
