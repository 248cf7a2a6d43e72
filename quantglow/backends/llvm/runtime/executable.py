"""A loaded program: kernels, constants and the table that the run-time system walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow import debug
from quantglow.backends.llvm.emission import emit_program, kernel_calls
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import kernel_addresses
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.runtime.binding import Binding, Places
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
from quantglow.foreign_calls import endable
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

NO_ADDRESSES: Mapping[int, int] = {}

LONG_WORK = 1e11
"""Work of a loop (some 0.3 seconds) from which on it runs on a thread that can be ended: to start
that costs some 50 microseconds."""


@dataclass
class Arenas:
    """Memory for the values of running inferences; each arena serves one at a time.

    ``growth``: a new arena is so many times as large as the largest one, if that was too small.
    Arenas are never given back, so that tables may point into them: with a growth of 2 all of them
    take at most twice the memory of the largest.
    """

    allocate: Allocate
    growth: int = 1
    _idle: dict[int, Array] = field(default_factory=dict)
    _nbytes: dict[int, int] = field(default_factory=dict)

    def take(self, nbytes: int) -> Array:
        """An arena of at least so many bytes that nobody uses."""
        for address, arena in list(self._idle.items()):
            # Another thread may take it after the question.
            if self._nbytes[address] >= nbytes and self._idle.pop(address, None) is not None:
                return arena
        largest = max(self._nbytes.values(), default=0)
        if self.growth > 1:
            nbytes = largest if nbytes <= largest else max(nbytes, self.growth * largest)
        arena = self.allocate(nbytes)
        self._nbytes[int(arena.ctypes.data)] = nbytes
        return arena

    def give(self, arena: Array) -> None:
        """Return an arena that was taken."""
        self._idle[int(arena.ctypes.data)] = arena


@dataclass(repr=False)
class Context(Concise):
    """Memory of one running inference: an arena and a table that points into it, of which these
    are the rows that are in no body of a loop; ``outside`` has an int64 for each call that is
    ``checked``, 0 where all its indices were in range."""

    arena: Array
    arguments: Array
    table: Array
    outside: Array


@dataclass(eq=False, repr=False)
class LlvmExecutable(Concise):
    """A loaded program at one shape: ``kernels`` are the addresses of its calls' functions,
    ``constants`` those of its constants.  ``run`` may be called from several threads.
    """

    program: EmittedProgram
    places: Places
    binding: Binding
    threads: int
    kernels: Array
    constants: Array
    arenas: Arenas
    _idle: dict[int, Context] = field(default_factory=dict)

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
        context = self._pointed(arrays, results, addresses)
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

        def call() -> None:
            run_table(self.program.target, crew, table)

        def end() -> None:
            for context in contexts:
                context.arguments[[position for position, _ in self.program.loops]] = 0

        if self.is_long:
            endable(call, end)
        else:
            call()

    @cached_property
    def is_long(self) -> bool:
        """Whether a loop may run for so long that somebody wants to end it."""
        trips = ((int(self.binding.offsets[at]), work) for at, work in self.program.loops)
        return any(count * work > LONG_WORK for count, work in trips)

    def index_error(self, context: Context) -> OutOfRangeError | None:
        """The error to raise where an index was out of range; the context is ready to run again."""
        if not context.outside.tobytes().strip(b"\0"):  # a tenth of the time of any()
            return None
        which = int(np.flatnonzero(context.outside)[0])
        index = int(context.outside[which])
        context.outside[:] = 0
        return out_of_range(self.program.indexings[which], index, self.binding.lengths[which])

    def new_outputs(self) -> list[Array]:
        """Uninitialised arrays for the outputs."""
        return [uninitialised(shape, dtype) for shape, dtype in self.binding.outputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [name for name, _ in self.program.outputs]

    def new_outputs_but(self, given: Mapping[str, Array]) -> list[Array]:
        """The same, but for the outputs that have an array already."""
        kinds = zip(self.program.outputs, self.binding.outputs, strict=True)
        return [
            given[name] if name in given else uninitialised(shape, dtype)
            for (name, _), (shape, dtype) in kinds
        ]

    @contextmanager
    def bound(self, feeds: Mapping[str, Array], outputs: Sequence[Array]) -> Iterator[Array]:
        """A table of kernel calls, ready to run, on inputs and outputs that live as long."""
        arrays = self.contiguous(feeds)
        context = self._pointed(arrays, outputs)
        yield context.table
        context.outside[:] = 0
        self.give_back(context)

    def contiguous(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The inputs in the program's order; they have to live while it runs."""
        return [np.ascontiguousarray(feeds[name]) for name, _ in self.program.inputs]

    def _pointed(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        addresses: Mapping[int, int] = NO_ADDRESSES,
    ) -> Context:
        """A context whose table reads and writes these arrays."""
        places, context = self.places, self.take_context()
        bases = addresses_of([*inputs, *outputs], addresses)[places.ends]
        context.arguments[places.external] = bases + self.binding.offsets[places.external]
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

    def take_context(self) -> Context:
        """A context that nobody uses."""
        arena = self.arenas.take(self._arena_nbytes)
        known = self._idle.pop(int(arena.ctypes.data), None)
        return known or self._context_on(arena)

    def give_back(self, context: Context) -> None:
        """Keep a context whose arena another program may use meanwhile."""
        self._idle[int(context.arena.ctypes.data)] = context
        self.arenas.give(context.arena)

    @cached_property
    def crew(self) -> int:
        """Number of threads that take part in a run, the caller's included."""
        return crew_for(self.shared_work, self.threads)

    @property
    def shared_work(self) -> float:
        """The work of a run that threads may share."""
        return float(self.binding.work[: self.program.count].sum())

    @cached_property
    def external_pointers(self) -> list[tuple[int, int, int]]:
        """Pointers to inputs and outputs: their positions among the pointers of all calls, which
        of the inputs and outputs they lead to, and bytes from its beginning."""
        places = self.places
        offsets = self.binding.offsets[places.external]
        parts = (places.external, places.ends, offsets)
        return list(zip(*(part.tolist() for part in parts), strict=True))

    @property
    def _arena_nbytes(self) -> int:
        """Size of an arena with the slack that kernels may read behind it."""
        return self.binding.arena_nbytes + self.program.target.isa.slack_nbytes

    def _context_on(self, arena: Array) -> Context:
        """A table that points into an arena; inputs and outputs are still missing."""
        binding, places = self.binding, self.places
        outside = np.zeros(places.checked, np.int64)
        table = np.empty((len(self.kernels), 4), np.int64)
        arguments = np.empty(len(places.slots), np.int64)
        own = [0, outside.ctypes.data, table.ctypes.data, arguments.ctypes.data]
        arena_bases = binding.buffers + arena.ctypes.data
        bases = np.concatenate([np.array(own, np.int64), self.constants, arena_bases])
        arguments[:] = bases[places.slots] + binding.offsets
        table[:, 0] = self.kernels
        table[:, 1] = arguments.ctypes.data + 8 * places.first
        table[:, 2] = binding.items
        table[:, 3] = chunks_of(binding.items, binding.work, self.threads)
        calls = table.view(np.uint64)[: self.program.count]
        return Context(arena, arguments.view(np.uint64), calls, outside)


def chunks_of(items: Array, work: Array, threads: int) -> Array:
    """Number of chunks in which threads share each call; small ones stay whole."""
    shared = np.minimum(items, min(threads * CHUNKS_PER_THREAD, MOST_THREADS))
    return np.where((items < 2) | (work < SERIAL_WORK), SERIAL, shared)


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
        steps = [call.step for call in emitted.rows]
        kernels = kernel_addresses(emitted.target, steps, [c.kernel for c in emitted.rows])
        kept = emitted.without_texts()
        release_freed()
    binding, places = Binding.of(emitted), Places.of(emitted)
    functions, constants = as_words(kernels), addresses_of(kept.constants)
    return LlvmExecutable(kept, places, binding, threads, functions, constants, Arenas(allocate))


def as_words(addresses: Sequence[int]) -> Array:
    """Addresses as they stand in a table."""
    return np.array(addresses, np.uint64).view(np.int64)


def addresses_of(arrays: Sequence[Array], known: Mapping[int, int] = NO_ADDRESSES) -> Array:
    """Addresses of arrays, some of which are ``known`` by ``id``: to ask for one takes a
    microsecond."""
    found = [known.get(id(array)) or array.ctypes.data for array in arrays]
    return np.array(found, np.int64)


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
