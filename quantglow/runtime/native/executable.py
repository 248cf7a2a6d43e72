"""Executable: runs a loaded program at one shape, by the table that the run-time system walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quantglow.codegen.llvm.call_profile import CallTime
from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.ops.indexing import out_of_range
from quantglow.ir.symbolic.expression import Values
from quantglow.runtime.native.buffers import uninitialized
from quantglow.runtime.native.loaded import NO_ADDRESSES, LoadedProgram, array_addresses
from quantglow.runtime.native.native_call import (
    NativeCall,
    NativeContext,
    end_order,
    shapes_as_words,
)
from quantglow.runtime.native.program_table import NO_VALUES, Binding, Kind, ProgramTable
from quantglow.runtime.native.table_runner import MOST_THREADS, SERIAL
from quantglow.runtime.native.threads import run_table, table_walk
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError, OutOfRangeError
from quantglow.support.processes.interrupts import endable
from quantglow.support.timeline import active

if TYPE_CHECKING:
    from quantglow.codegen.llvm.emitted import EmittedProgram
    from quantglow.runtime.native.tracing import RecordedWalk, TracedTable

CHUNKS_PER_THREAD = 2
"""Chunks of a call for each thread: more even out disturbances by other programs, but each costs a
claim."""
SERIAL_WORK = 20_000.0
"""Work of a call below which it runs on one thread: a split would cost more than it gains."""
SERIAL_PROGRAM = 8e6
"""Work of a program (some 30 microseconds) below which it runs on one thread: a second thread that
waits saves little, and waking it takes longer than the program."""

LONG_WORK = 1e11
"""Work of a loop (some 0.3 seconds) from which on it runs on a thread that can be ended: to start
that costs some 50 microseconds."""


@dataclass(repr=False)
class Context(Concise):
    """Memory of one running inference: an arena and a table that points into it, of which these
    are the rows that are in no body of a loop; ``outside`` has an int64 for each call that is
    ``checked``, 0 where all its indices were in range; ``alone`` walks the table on one thread;
    ``traced`` records its calls in traces, and ``recorded`` those of ``alone``."""

    arena: Array
    arguments: Array
    table: Array
    outside: Array
    alone: Callable[[], None]
    traced: TracedTable | None = None
    recorded: RecordedWalk | None = None


@dataclass(eq=False, repr=False)
class LlvmExecutable(Concise):
    """A loaded program at one shape.  ``run`` may be called from several threads."""

    loaded: LoadedProgram
    binding: Binding
    _idle: dict[int, Context] = field(default_factory=dict)

    @staticmethod
    def of(loaded: LoadedProgram, values: Values = NO_VALUES) -> LlvmExecutable:
        """The executable for values of the symbols at which the program serves."""
        return LlvmExecutable(loaded, loaded.bindings.at(values))

    @property
    def table(self) -> ProgramTable:
        """The rows of the program."""
        return self.loaded.table

    @property
    def target(self) -> Target:
        """The processor that the code is for."""
        return self.table.target

    @property
    def inputs(self) -> dict[str, Kind]:
        """Shapes and types of the arrays that it reads, by name."""
        return dict(zip(self.table.input_names, self.binding.inputs, strict=True))

    @property
    def threads(self) -> int:
        """Maximum number of threads of a run."""
        return self.loaded.threads

    @property
    def program(self) -> EmittedProgram:
        """The calls with their instructions, of a program that was compiled in this process."""
        assert self.loaded.emitted is not None, "the program was read"
        return self.loaded.emitted

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Sequence[Array] | None = None,
        addresses: Mapping[int, int] = NO_ADDRESSES,
    ) -> list[Array]:
        """Outputs in the program's order; feeds must match its inputs.

        ``outputs``: contiguous arrays of the right types to write to, instead of new ones.
        ``addresses``: those of some of the arrays, by ``id``.
        """
        results = self.new_outputs() if outputs is None else list(outputs)
        arrays = self.contiguous(feeds)
        context = self._point(arrays, results, addresses)
        self.walk(context.table, [context], self.crew)
        error = self.index_error(context)
        self.give_back(context)
        if error is not None:
            raise error
        return results

    def walk(self, table: Array, contexts: Sequence[Context], crew: int) -> None:
        """Run the calls of a table, which use these contexts, on as many threads.

        Ctrl-C ends loops that may run for long; the contexts are of no more use then.
        """
        trace, context = active(), contexts[0]
        is_own = table is context.table
        if is_own and crew == 1 and not self.is_long:
            if trace is None:
                context.alone()
            elif (walk := context.recorded) is None or walk.trace() is not trace or not walk.step():
                self._record(context).run(trace)
            return
        if trace is None:
            self._walk(table, contexts, crew)
            return
        tables = [self._trace(context) for context in contexts]
        turns = 1 if is_own else int(table[:, 2].sum())
        try:
            for each in tables:
                each.begin(trace, turns)
            self._walk(table, contexts, crew)
        finally:
            for each in tables:
                each.end()

    def _trace(self, context: Context) -> TracedTable:
        """The table of a context with what records its calls."""
        if context.traced is None:
            # Only here: few processes trace.
            from quantglow.runtime.native.tracing import TracedTable

            context.traced = TracedTable.of(self.target, context.table, self.table.calls)
        return context.traced

    def _record(self, context: Context) -> RecordedWalk:
        """A walk of a context's table that is recorded, kept with the context."""
        if context.recorded is None:
            # Only here: few processes trace.
            from quantglow.runtime.native.tracing import RecordedWalk

            context.recorded = RecordedWalk(self.target, context.table, self.table.calls)
        return context.recorded

    def _walk(self, table: Array, contexts: Sequence[Context], crew: int) -> None:
        def call() -> None:
            run_table(self.target, crew, table)

        def end() -> None:
            for context in contexts:
                context.arguments[[position for position, _ in self.table.loops]] = 0

        if self.is_long:
            endable(call, end)
        else:
            call()

    @cached_property
    def is_long(self) -> bool:
        """Whether a loop may run for so long that somebody wants to end it."""
        trips = ((int(self.binding.offsets[at]), work) for at, work in self.table.loops)
        return any(count * work > LONG_WORK for count, work in trips)

    def index_error(self, context: Context) -> OutOfRangeError | None:
        """The error to raise where an index was out of range; the context is ready to run again."""
        if not context.outside.tobytes().strip(b"\0"):  # a tenth of the time of any()
            return None
        which = int(np.flatnonzero(context.outside)[0])
        index = int(context.outside[which])
        context.outside[:] = 0
        return out_of_range(self.table.indexed[which], index, self.binding.lengths[which])

    def new_outputs(self) -> list[Array]:
        """Uninitialized arrays for the outputs."""
        return [uninitialized(shape, dtype) for shape, dtype in self.binding.outputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return list(self.table.output_names)

    def new_outputs_but(self, outputs: Mapping[str, Array]) -> list[Array]:
        """The same, but for the outputs that have an array already."""
        kinds = zip(self.table.output_names, self.binding.outputs, strict=True)
        return [
            outputs[name] if name in outputs else uninitialized(shape, dtype)
            for name, (shape, dtype) in kinds
        ]

    @contextmanager
    def bound(self, feeds: Mapping[str, Array], outputs: Sequence[Array]) -> Iterator[Array]:
        """A table of kernel calls, ready to run, on inputs and outputs that live as long."""
        arrays = self.contiguous(feeds)
        context = self._point(arrays, outputs)
        yield context.table
        context.outside[:] = 0
        self.give_back(context)

    def contiguous(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The inputs in the program's order; they have to live while it runs."""
        return [np.ascontiguousarray(feeds[name]) for name in self.table.input_names]

    def _point(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        addresses: Mapping[int, int] = NO_ADDRESSES,
    ) -> Context:
        """A context whose table reads and writes these arrays."""
        places, context = self.table.places, self.take_context()
        bases = array_addresses([*inputs, *outputs], addresses)[places.ends]
        context.arguments[places.external] = bases + self._external_offsets
        return context

    @cached_property
    def _external_offsets(self) -> Array:
        """Bytes of pointers to inputs and outputs from the beginnings of these."""
        return self.binding.offsets[self.table.places.external]

    def profile_calls(self, feeds: Mapping[str, Array], repeats: int = 30) -> list[CallTime]:
        """The median seconds of each kernel call, in the order of execution.

        Calls run one after the other as in ``run``, so each finds the caches as it does there;
        what it costs to enter compiled code is taken off.

        Raises ``BackendError`` for a program of all shapes: products were counted at one of them.
        """
        if self.table.order is not None:
            raise BackendError(
                "a program for all shapes has no figures of its calls. "
                "Remedy: profile a model that was compiled for the shape."
            )
        # Only here: few processes profile.
        from quantglow.codegen.llvm.call_profile import median_call_times

        with self.bound(feeds, self.new_outputs()) as table:
            return median_call_times(
                self.table.calls,
                lambda begin, end: run_table(self.target, self.crew, table[begin:end]),
                repeats,
            )

    def take_context(self) -> Context:
        """A context that nobody uses."""
        arena = self.loaded.arenas.take(self.arena_nbytes)
        idle = self._idle.pop(id(arena), None)
        return idle or self._new_context(arena, np.zeros(len(self.table.indexed), np.int64))

    def give_back(self, context: Context) -> None:
        """Keep a context whose arena another program may use meanwhile."""
        self._idle[id(context.arena)] = context
        self.loaded.arenas.give(context.arena)

    def native_call(self, inputs: Sequence[str], outputs: Sequence[str]) -> NativeCall | None:
        """The program as numbers, its inputs and outputs in the order of these names; None where a
        run has to be ended at Ctrl-C, or gives other outputs."""
        if self.is_long or list(outputs) != self.output_names:
            return None
        places = self.table.places
        order = end_order(list(inputs), self.table.input_names, len(outputs))
        return NativeCall(
            self.target,
            self._native_context,
            self.table.count,
            self.crew,
            np.array(places.external, np.int64),
            order[places.ends],
            np.array(self._external_offsets, np.int64),
            *shapes_as_words([shape for shape, _ in self.binding.outputs]),
            len(self.table.indexed),
        )

    def _native_context(self) -> NativeContext:
        context = self.take_context()
        give_back = partial(self.give_back, context)
        return NativeContext(context.arguments, context.table, context.outside, give_back)

    @cached_property
    def crew(self) -> int:
        """Number of threads that take part in a run, the caller's included."""
        return crew_for(self.shared_work, self.threads)

    @property
    def shared_work(self) -> float:
        """The work of a run that threads may share."""
        return float(self.binding.work[: self.table.count].sum())

    @cached_property
    def external_pointers(self) -> list[tuple[int, int, int]]:
        """Pointers to inputs and outputs: their positions among the pointers of all calls, which
        of the inputs and outputs they lead to, and bytes from its beginning."""
        places = self.table.places
        parts = (places.external, places.ends, self._external_offsets)
        return list(zip(*(part.tolist() for part in parts), strict=True))

    @cached_property
    def arena_nbytes(self) -> int:
        """Size of an arena with the slack that kernels may read behind it."""
        return self.binding.arena_nbytes + self.target.isa.slack_nbytes

    def new_context(self, outside: Array) -> Context:
        """A context on an arena that nobody uses, with memory for the checks of indices (int64,
        zeros).  To be given back is its arena only: the context is never used again."""
        return self._new_context(self.loaded.arenas.take(self.arena_nbytes), outside)

    def _new_context(self, arena: Array, outside: Array) -> Context:
        """A context with memory of its own."""
        return self.context_on(arena, np.empty(len(self.table.places.slots), np.int64), outside)

    def context_on(self, arena: Array, arguments: Array, outside: Array) -> Context:
        """A table that points into an arena; inputs and outputs are still missing.

        ``arguments`` (int64): memory for the pointers of all calls, ``outside`` (int64, zeros) for
        the checks of indices.
        """
        binding, places, loaded = self.binding, self.table.places, self.loaded
        table = np.empty((len(loaded.functions), 4), np.int64)
        words = [0, outside.ctypes.data, table.ctypes.data, arguments.ctypes.data]
        arena_bases = binding.buffers + arena.ctypes.data
        bases = np.concatenate([np.array(words, np.int64), loaded.constants, arena_bases])
        arguments[:] = bases[places.slots] + binding.offsets
        table[:, 0] = loaded.functions
        table[:, 1] = arguments.ctypes.data + 8 * places.first
        table[:, 2] = binding.items
        table[:, 3] = split_chunks(binding.items, binding.work, self.threads)
        calls = table.view(np.uint64)[: self.table.count]
        alone = table_walk(self.target, calls)
        return Context(arena, arguments.view(np.uint64), calls, outside, alone)


def split_chunks(items: Array, work: Array, threads: int) -> Array:
    """Number of chunks in which threads share each call; small ones stay whole."""
    shared = np.minimum(items, min(threads * CHUNKS_PER_THREAD, MOST_THREADS))
    return np.where((items < 2) | (work < SERIAL_WORK), SERIAL, shared)


def crew_for(work: float, threads: int) -> int:
    """Number of threads that are worth their waking."""
    return 1 if work < SERIAL_PROGRAM else threads
