"""A compiled program: kernels, packed constants and the table that the run-time system walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow import debug
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.library import addresses
from quantglow.backends.llvm.target import Target
from quantglow.backends.llvm.threads import MOST_THREADS, SERIAL, run_table
from quantglow.instr.program import Alloc, Buffer, BufferKind, Dealloc, Program, View
from quantglow.memory.planner import MemoryPlan
from quantglow.types import Array

ALIGNMENT = 64
CHUNKS_PER_THREAD = 2
"""More chunks even out what tiles and other programs disturb; each costs a claim."""
SERIAL_WORK = 20_000.0
"""Calls with less work than this run on one thread: a split would cost more than it gains."""


@dataclass
class _Context:
    """What one running inference owns: an arena and a table that points into it."""

    arena: Array
    arguments: Array
    table: Array


@dataclass(eq=False)
class LlvmExecutable:
    """Machine code for a planned program.  ``run`` may be called from several threads."""

    program: Program
    plan: MemoryPlan
    target: Target
    threads: int
    calls: list[KernelCall]
    kernels: list[int]
    constants: dict[int, Array]
    _idle: list[_Context] = field(default_factory=list)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds must match its inputs."""
        inputs = {
            view.buffer: np.ascontiguousarray(feeds[name]) for name, view in self.program.inputs
        }
        outputs = {
            view.buffer: np.empty(view.shape, view.type.dtype.numpy)
            for _, view in self.program.outputs
        }
        context = self._take_context()
        self._bind(context, {**inputs, **outputs})
        run_table(self.target, self.threads, context.table)
        self._idle.append(context)
        return [outputs[view.buffer] for _, view in self.program.outputs]

    def _take_context(self) -> _Context:
        try:
            # Not "if self._idle": another thread may take the last one after the question.
            return self._idle.pop()
        except IndexError:
            return self._new_context()

    def _bind(self, context: _Context, external: Mapping[Buffer, Array]) -> None:
        for position, view in self._external_pointers:
            address = external[view.buffer].ctypes.data + view.offset_bytes
            context.arguments[position] = address

    def __post_init__(self) -> None:
        self._external_pointers = [
            (position, pointer)
            for position, pointer in enumerate(self._pointers())
            if isinstance(pointer, View)
            and pointer.buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT)
        ]

    def _pointers(self) -> list[View | Array]:
        return [pointer for call in self.calls for pointer in call.pointers]

    def _new_context(self) -> _Context:
        arena = aligned_bytes(self.plan.peak_nbytes)
        arguments = np.array([self._address(p, arena) for p in self._pointers()], np.uint64)
        table = np.zeros((len(self.calls), 4), np.uint64)
        position = 0
        for row, call in enumerate(self.calls):
            table[row, 0] = self.kernels[row]
            table[row, 1] = arguments.ctypes.data + 8 * position
            table[row, 2] = call.items
            table[row, 3] = self._chunks(call)
            position += len(call.pointers)
        return _Context(arena, arguments, table)

    def _chunks(self, call: KernelCall) -> int:
        """In how many chunks threads share a call; small ones stay whole."""
        if call.items < 2 or call.work < SERIAL_WORK:
            return SERIAL
        return min(call.items, self.threads * CHUNKS_PER_THREAD, MOST_THREADS)

    def _address(self, pointer: View | Array, arena: Array) -> int:
        if not isinstance(pointer, View):
            return int(self.constants[id(pointer)].ctypes.data)
        if pointer.buffer.kind is BufferKind.CONSTANT:
            return int(self.constants[id(pointer.buffer)].ctypes.data) + pointer.offset_bytes
        if pointer.buffer.kind is BufferKind.TEMP:
            base = int(arena.ctypes.data) + self.plan.offsets[pointer.buffer]
            return base + pointer.offset_bytes
        return 0


def compile_program(
    program: Program, plan: MemoryPlan, target: Target, threads: int = 1
) -> LlvmExecutable:
    """Emit, compile and load every kernel of a program."""
    with debug.timed("emit"):
        steps = [s for s in program.instructions if not isinstance(s, Alloc | Dealloc)]
        calls = [call for call in (emit(step, target) for step in steps) if call.items]
    with debug.timed("compile"):
        kernels = addresses(target, [call.ir for call in calls])
    constants = load_constants(calls)
    return LlvmExecutable(program, plan, target, threads, calls, kernels, constants)


def load_constants(calls: Sequence[KernelCall]) -> dict[int, Array]:
    """Aligned copies of constants with readable slack after them, keyed by identity."""
    loaded: dict[int, Array] = {}
    for call in calls:
        for pointer in call.pointers:
            if isinstance(pointer, View):
                if pointer.buffer.kind is BufferKind.CONSTANT:
                    assert pointer.buffer.value is not None
                    key, array = id(pointer.buffer), pointer.buffer.value
                else:
                    continue
            else:
                key, array = id(pointer), pointer
            if key not in loaded:
                loaded[key] = aligned_copy(array)
    return loaded


def aligned_bytes(nbytes: int) -> Array:
    """Uninitialised bytes at a cache-line boundary, with slack after them."""
    raw = np.empty(nbytes + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes + ALIGNMENT]


def aligned_copy(array: Array) -> Array:
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    copy = aligned_bytes(data.size)
    copy[: data.size] = data
    copy[data.size :] = 0
    return copy
