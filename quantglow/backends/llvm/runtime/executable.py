"""A loaded program: kernels, constants and the table that the run-time system walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow import debug
from quantglow.backends.llvm.emission import (
    EmittedProgram,
    Place,
    Pointer,
    emit_program,
    kernel_calls,
)
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import kernel_addresses
from quantglow.backends.llvm.kernel import KernelCall
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
from quantglow.concise import Concise
from quantglow.errors import OutOfRangeError
from quantglow.instr.program import Program
from quantglow.lazy import cached_property
from quantglow.memory.planner import MemoryPlan
from quantglow.ops.indexing import out_of_range
from quantglow.types import Array

Check = Callable[[], object]
"""Raises an error where work that goes on beside other work is not wanted any more."""

CHUNKS_PER_THREAD = 2
"""Chunks of a call for each thread: more even out disturbances by other programs, but each costs a
claim."""
SERIAL_WORK = 20_000.0
"""Work of a call below which it runs on one thread: a split would cost more than it gains."""
SERIAL_PROGRAM = 8e6
"""Work of a program (some 30 microseconds) below which it runs on one thread: a second thread that
waits saves little, and waking it takes longer than the program."""


@dataclass(repr=False)
class Context(Concise):
    """Memory of one running inference: an arena and a table that points into it; ``outside`` has
    an int64 for each call that is ``checked``, 0 where all its indices were in range."""

    arena: Array
    arguments: Array
    table: Array
    outside: Array


@dataclass(eq=False, repr=False)
class LlvmExecutable(Concise):
    """A loaded program: ``kernels`` are the addresses of its calls' functions.  ``run`` may be
    called from several threads.
    """

    program: EmittedProgram
    threads: int
    kernels: list[int]
    allocate: Allocate
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
        run_table(self.program.target, self.crew, context.table)
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
        checked = [op for call in self.program.calls if (op := call.indexing) is not None]
        return out_of_range(checked[which], index, checked[which].length)

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
                self.program.calls,
                lambda begin, end: run_table(self.program.target, self.crew, table[begin:end]),
                repeats,
            )

    def _take_context(self) -> Context:
        try:
            # Not "if self._idle": another thread may take the last one after the question.
            return self._idle.pop()
        except IndexError:
            return self.new_context()

    @cached_property
    def crew(self) -> int:
        """Number of threads that take part in a run, the caller's included."""
        return crew_for(self.program.work, self.threads)

    @cached_property
    def external_pointers(self) -> list[tuple[int, int, int]]:
        """Pointers to inputs and outputs: their positions among the pointers of all calls, which
        of the inputs and outputs they lead to, and bytes from its beginning."""
        first = {Place.INPUT: 0, Place.OUTPUT: len(self.program.inputs)}
        return [
            (position, first[pointer.place] + pointer.index, pointer.offset_bytes)
            for position, pointer in enumerate(self._pointers())
            if pointer.place in first
        ]

    def _pointers(self) -> Iterator[Pointer]:
        """Arguments of all calls, one after the other."""
        return (pointer for call in self.program.calls for pointer in call.pointers)

    def new_context(self) -> Context:
        """An arena and a table that points into it; inputs and outputs are still missing."""
        calls = self.program.calls
        slack_nbytes = self.program.target.isa.slack_nbytes
        arena = self.allocate(self.program.arena_nbytes + slack_nbytes)
        outside = np.zeros(sum(call.indexing is not None for call in calls), np.int64)
        constants = [array.ctypes.data for array in self.program.constants]

        def address(pointer: Pointer) -> int:
            match pointer.place:
                case Place.ARENA:
                    return int(arena.ctypes.data) + pointer.offset_bytes
                case Place.CONSTANT:
                    return constants[pointer.index] + pointer.offset_bytes
                case Place.CHECK:
                    return int(outside.ctypes.data) + 8 * pointer.index
            return 0

        arguments = np.array([address(pointer) for pointer in self._pointers()], np.uint64)
        table = np.zeros((len(calls), 4), np.uint64)
        position = 0
        for row, call in enumerate(calls):
            table[row, 0] = self.kernels[row]
            table[row, 1] = arguments.ctypes.data + 8 * position
            table[row, 2] = call.items
            table[row, 3] = chunks_of(call.kernel, self.threads)
            position += len(call.pointers)
        return Context(arena, arguments, table, outside)


def chunks_of(call: KernelCall, threads: int) -> int:
    """Number of chunks in which threads share a call; small ones stay whole."""
    if call.items < 2 or call.work < SERIAL_WORK:
        return SERIAL
    return min(call.items, threads * CHUNKS_PER_THREAD, MOST_THREADS)


def crew_for(work: float, threads: int) -> int:
    """Number of threads that are worth their waking."""
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
    allocate, shared = allocate or allocator(target), allocate is None
    constants = Constants(allocate, target.isa.slack_nbytes, shared)
    with debug.timed("emit"):
        emitted = emit_program(program, plan, target, constants.copy)
    return load_program(emitted, threads, allocate)


def load_program(emitted: EmittedProgram, threads: int, allocate: Allocate) -> LlvmExecutable:
    """Compile and load the kernels of an emitted program.  ``allocate`` makes its arenas."""
    with debug.timed("compile"):
        steps = [call.step for call in emitted.calls]
        kernels = kernel_addresses(emitted.target, steps, [c.kernel for c in emitted.calls])
        loaded = emitted.without_texts()
        release_freed()
    return LlvmExecutable(loaded, threads, kernels, allocate)


def allocator(target: Target) -> Allocate:
    """Makes the memory of a program."""
    return LargePages() if target.core.large_pages and HAS_LARGE_PAGES else aligned_bytes


def load_kernels(program: Program, target: Target, check: Check) -> None:
    """Compile the kernels of a program: ``compile_program`` will find them loaded, also that of a
    program with other constants.  ``check`` is called before each; it may raise.
    """
    steps, calls = zip(*kernel_calls(program, target), strict=True)
    kernel_addresses(target, steps, [checked(call, check) for call in calls])


def checked(call: KernelCall, check: Check) -> KernelCall:
    """The same call, whose text is made after a check."""

    def code() -> str:
        check()
        return call.ir

    return replace(call, code=code)
