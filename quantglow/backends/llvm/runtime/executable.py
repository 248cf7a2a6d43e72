"""A compiled program: kernels, packed constants and the table that the run-time system walks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow import debug
from quantglow.backends.llvm.jit.library import kernel_addresses
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.kernels import emit
from quantglow.backends.llvm.runtime.buffers import (
    Allocate,
    Constants,
    aligned_bytes,
    release_freed,
    uninitialised,
)
from quantglow.backends.llvm.runtime.huge_pages import HAS_LARGE_PAGES, LargePages
from quantglow.backends.llvm.runtime.profiler import CallTime, median_call_times
from quantglow.backends.llvm.runtime.table_runner import MOST_THREADS, SERIAL
from quantglow.backends.llvm.runtime.threads import run_table
from quantglow.backends.llvm.target import Target
from quantglow.concise import Concise
from quantglow.errors import OutOfRangeError
from quantglow.instr.program import Alloc, BufferKind, Compute, Dealloc, Instruction, Program, View
from quantglow.lazy import cached_property
from quantglow.memory.planner import MemoryPlan
from quantglow.ops.indexing import Gather, Scatter, out_of_range
from quantglow.types import Array

CHUNKS_PER_THREAD = 2
"""More chunks even out what tiles and other programs disturb; each costs a claim."""
SERIAL_WORK = 20_000.0
"""Calls with less work than this run on one thread: a split would cost more than it gains."""
SERIAL_PROGRAM = 8e6
"""So do programs with less work in all, of some 30 microseconds: a second thread wins them little
where it waits for them, and to wake it takes longer than they do."""


@dataclass(repr=False)
class Context(Concise):
    """What one running inference owns: an arena and a table that points into it; ``outside`` has
    an int64 for each call that is ``checked``, 0 where all its indices were in range."""

    arena: Array
    arguments: Array
    table: Array
    outside: Array


@dataclass(eq=False, repr=False)
class LlvmExecutable(Concise):
    """Machine code for a planned program.  ``run`` may be called from several threads."""

    program: Program
    plan: MemoryPlan
    target: Target
    threads: int
    steps: list[Instruction]
    calls: list[KernelCall]
    kernels: list[int]
    constants: Constants
    _idle: list[Context] = field(default_factory=list)

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[Array] | None = None
    ) -> list[Array]:
        """Outputs in the program's order; feeds must match its inputs.

        ``outputs``: contiguous arrays of the right types to write to, instead of new ones.
        """
        results = self.new_outputs() if outputs is None else list(outputs)
        arrays = self.contiguous(feeds)
        context = self._pointed(arrays, results)
        run_table(self.target, self.crew, context.table)
        error = self.index_error(context)
        self._idle.append(context)
        if error is not None:
            raise error
        return results

    def index_error(self, context: Context) -> OutOfRangeError | None:
        """The error to raise where an index was out of range; the context is ready to run again."""
        if not context.outside.tobytes().strip(b"\0"):  # a tenth of the time of any()
            return None
        which = int(np.flatnonzero(context.outside)[0])
        index = int(context.outside[which])
        context.outside[:] = 0
        checked = [s for s, call in zip(self.steps, self.calls, strict=True) if call.checked]
        step = checked[which]
        assert isinstance(step, Compute) and isinstance(step.op, Gather | Scatter)
        return out_of_range(step.op, index, step.op.length)

    def new_outputs(self) -> list[Array]:
        """Uninitialised arrays for the outputs."""
        return [
            uninitialised(view.shape, view.type.dtype.numpy) for _, view in self.program.outputs
        ]

    @contextmanager
    def bound(self, feeds: Mapping[str, Array], outputs: Sequence[Array]) -> Iterator[Array]:
        """A table of kernel calls, ready to run, on inputs and outputs that live as long."""
        arrays = self.contiguous(feeds)
        context = self._pointed(arrays, outputs)
        yield context.table
        context.outside[:] = 0
        self._idle.append(context)

    def contiguous(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The inputs in the program's order; they have to live while it runs."""
        return [np.ascontiguousarray(feeds[name]) for name, _ in self.program.inputs]

    def _pointed(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Context:
        """A context whose table reads and writes these arrays."""
        addresses = [array.ctypes.data for array in (*inputs, *outputs)]
        context = self._take_context()
        for position, end, offset_bytes in self.external_pointers:
            context.arguments[position] = addresses[end] + offset_bytes
        return context

    def profile_calls(self, feeds: Mapping[str, Array], repeats: int = 30) -> list[CallTime]:
        """The median seconds of each kernel call, in the order of execution.

        Calls run one after the other as in ``run``, so each finds the caches as it does there;
        what it costs to enter compiled code is taken off.
        """
        with self.bound(feeds, self.new_outputs()) as table:
            return median_call_times(
                self.steps,
                self.calls,
                lambda begin, end: run_table(self.target, self.crew, table[begin:end]),
                repeats,
            )

    def _take_context(self) -> Context:
        try:
            # Not "if self._idle": another thread may take the last one after the question.
            return self._idle.pop()
        except IndexError:
            return self.new_context()

    @property
    def work(self) -> float:
        """The estimated operations of all calls."""
        return sum(call.work for call in self.calls)

    @cached_property
    def crew(self) -> int:
        """How many threads take part in a run, the caller's included."""
        return crew_for(self.work, self.threads)

    @cached_property
    def external_pointers(self) -> list[tuple[int, int, int]]:
        """Which pointers lead to inputs and outputs: their positions among the pointers of all
        calls, to which of the inputs and outputs, and bytes from its beginning."""
        ends = {
            view.buffer: index
            for index, (_, view) in enumerate((*self.program.inputs, *self.program.outputs))
        }
        return [
            (position, ends[pointer.buffer], pointer.offset_bytes)
            for position, pointer in enumerate(self._pointers())
            if isinstance(pointer, View) and pointer.buffer in ends
        ]

    def _pointers(self) -> list[View | Array | None]:
        """What all calls take, one after the other; None for a place in ``Context.outside``."""
        found: list[View | Array | None] = []
        for call in self.calls:
            found += [*call.pointers, None] if call.checked else call.pointers
        return found

    def new_context(self) -> Context:
        arena = self.constants.allocate(self.plan.peak_nbytes)
        outside = np.zeros(sum(call.checked for call in self.calls), np.int64)
        places = iter(range(outside.ctypes.data, outside.ctypes.data + outside.nbytes, 8))
        arguments = np.array(
            [next(places) if p is None else self._address(p, arena) for p in self._pointers()],
            np.uint64,
        )
        table = np.zeros((len(self.calls), 4), np.uint64)
        position = 0
        for row, call in enumerate(self.calls):
            table[row, 0] = self.kernels[row]
            table[row, 1] = arguments.ctypes.data + 8 * position
            table[row, 2] = call.items
            table[row, 3] = self._chunks(call)
            position += len(call.pointers) + call.checked
        return Context(arena, arguments, table, outside)

    def _chunks(self, call: KernelCall) -> int:
        """In how many chunks threads share a call; small ones stay whole."""
        if call.items < 2 or call.work < SERIAL_WORK:
            return SERIAL
        return min(call.items, self.threads * CHUNKS_PER_THREAD, MOST_THREADS)

    def _address(self, pointer: View | Array, arena: Array) -> int:
        if not isinstance(pointer, View):
            return int(pointer.ctypes.data)
        if pointer.buffer.kind is BufferKind.CONSTANT:
            return self.constants.address(pointer.buffer) + pointer.offset_bytes
        if pointer.buffer.kind is BufferKind.TEMP:
            base = int(arena.ctypes.data) + self.plan.offsets[pointer.buffer]
            return base + pointer.offset_bytes
        return 0


def crew_for(work: float, threads: int) -> int:
    """How many of the threads are worth their waking."""
    return 1 if work < SERIAL_PROGRAM else threads


def compile_program(
    program: Program,
    plan: MemoryPlan,
    target: Target,
    threads: int = 1,
    allocate: Allocate | None = None,
) -> LlvmExecutable:
    """Emit, compile and load every kernel of a program.

    ``allocate`` makes arenas and constants, by default in the process's own memory, where programs
    share equal constants.
    """
    constants = Constants(allocate or allocator(target), shared=allocate is None)
    steps: list[Instruction] = []
    calls: list[KernelCall] = []
    with debug.timed("emit"):
        for step, call in _calls(program, target):
            steps.append(step)
            calls.append(constants.owned(call))
    with debug.timed("compile"):
        kernels = kernel_addresses(target, steps, calls)
        calls = [replace(call, code="") for call in calls]  # they keep their generators
        release_freed()
    return LlvmExecutable(program, plan, target, threads, steps, calls, kernels, constants)


def allocator(target: Target) -> Allocate:
    """Makes the memory of a program."""
    return LargePages() if target.core.large_pages and HAS_LARGE_PAGES else aligned_bytes


def load_kernels(program: Program, target: Target) -> None:
    """Compile the kernels of a program: ``compile_program`` will find them loaded, also that of a
    program with other constants.
    """
    steps, calls = zip(*_calls(program, target), strict=True)
    kernel_addresses(target, steps, calls)


def _calls(program: Program, target: Target) -> Iterator[tuple[Instruction, KernelCall]]:
    """The instructions that become kernels with something to do."""
    for step in program.instructions:
        if not isinstance(step, Alloc | Dealloc) and (call := emit(step, target)).items:
            yield step, call
