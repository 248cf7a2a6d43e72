"""Sequences of runs without Python in between: chains of programs, and batches in pieces.

A chain runs programs one after the other.  Each has a table of calls; the tables of all are one.
Inputs and outputs are parts of buffers whose addresses are set before a run.

A batch is cut in pieces, which threads share.  A piece goes through the whole network on one
thread, so its values stay in the caches of that core and no thread waits for another one between
layers.  ``run_pieces`` is a kernel like any other, whose work items are pieces: a call takes a free
slot (an arena and a table of kernel calls that points into it) and walks the table for each of its
pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

import numpy as np

from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.table_walk import INTERNAL_RUN_ALONE, read_template
from quantglow.ir.program.strides import dense_strides
from quantglow.ir.symbolic.size import fixed
from quantglow.ir.types import TensorType
from quantglow.runtime.jit.library import addresses
from quantglow.runtime.native.buffers import aligned_address, uninitialized
from quantglow.runtime.native.executable import Context, LlvmExecutable, crew_for
from quantglow.runtime.native.native_call import (
    NativeCall,
    NativeContext,
    end_order,
    shapes_as_words,
)
from quantglow.runtime.native.program_table import End, end_sizes
from quantglow.runtime.native.table_runner import MOST_THREADS, SERIAL
from quantglow.runtime.native.threads import run_table
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import BackendError, OutOfRangeError

Ends = Sequence[tuple[int, int]]
"""For each input, then each output of a program: the number of a buffer, and bytes from its
beginning."""

_WORDS = {"slots": 0, "calls": 1, "moving": 2, "count": 3, "busy": 8}
"""Layout of the argument of ``run_pieces``, in words.  ``slots``: the addresses of each slot's
table and of the pointers that its calls take; ``calls``: rows of a table; ``moving``: a row for
each pointer to an input or output: its position, its address in piece 0, bytes to the next piece;
``count``: these rows; ``busy``: a bit for each slot in use, on a line of its own."""

RUN_PIECES = read_template(
    "run_pieces",
    {
        **{f"batch.{name}": word for name, word in _WORDS.items()},
        "run_alone": INTERNAL_RUN_ALONE,
    },
)


@dataclass(eq=False, repr=False)
class ExecutableChain(Concise):
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
    def of(runs: Sequence[LlvmExecutable], ends: Sequence[Ends]) -> ExecutableChain:
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
        return ExecutableChain(
            tuple(runs), arena, contexts, arguments, outside, table, places, rows
        )

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


@cache
def run_pieces_address(target: Target) -> int:
    """The address of the kernel."""
    (address,) = addresses(target, [RUN_PIECES], "run_pieces")
    return address


@dataclass
class _Batch:
    """Memory of one running batch: the addresses of its slots, and the argument of
    ``run_pieces``."""

    slots: Array
    moving: Array
    words: Array
    table: Array


@dataclass(frozen=True, eq=False, repr=False)
class BatchedExecutable(Concise):
    """Runs the program of a piece for each piece of a batch.  ``run`` may be called from several
    threads.

    ``inputs`` and ``outputs`` are the types of the whole batch.  Raises ``BackendError`` unless
    the pieces, one after the other, make up exactly these: compiled code moves its pointers by
    the size of a piece and checks nothing.
    """

    piece: LlvmExecutable
    pieces: int
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    _idle: list[_Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        table, binding = self.piece.table, self.piece.binding
        parts = zip(
            (*table.inputs, *table.outputs),
            (*binding.inputs, *binding.outputs),
            (*self.inputs, *self.outputs),
            strict=True,
        )
        for part, (shape, _), whole in parts:
            _check_part(part, shape, end_sizes(part, binding.numbers), self.pieces, whole)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs in the program's order; feeds are known to match the whole batch."""
        results = self.new_outputs()
        inputs = self.piece.contiguous(feeds)
        batch = self._take()
        contexts = [self.piece.take_context() for _ in batch.slots]
        batch.slots[:] = [(c.table.ctypes.data, c.arguments.ctypes.data) for c in contexts]
        batch.moving[:] = np.reshape(self._addresses([*inputs, *results]), (-1, 3))
        self.piece.walk(batch.table, contexts, self.crew)
        errors = [self.piece.index_error(context) for context in contexts]
        for context in contexts:
            self.piece.give_back(context)
        self._idle.append(batch)
        if error := next(filter(None, errors), None):
            raise error
        return results

    def new_outputs(self) -> list[Array]:
        """Uninitialized arrays for the outputs."""
        return [uninitialized(kind.fixed_shape, kind.dtype.numpy) for kind in self.outputs]

    @cached_property
    def crew(self) -> int:
        """Number of threads that take part."""
        return crew_for(self.pieces * self.piece.shared_work, self.piece.threads)

    def native_call(self, inputs: Sequence[str], outputs: Sequence[str]) -> NativeCall | None:
        """The batch as numbers, see ``LlvmExecutable.native_call``: pointers lead to its first
        piece."""
        piece, places = self.piece, self.piece.table.places
        if piece.is_long or list(outputs) != piece.output_names:
            return None
        order = end_order(list(inputs), piece.table.input_names, len(outputs))
        slots = min(self.crew, self.pieces, MOST_THREADS)
        return NativeCall(
            piece.target,
            self._native_context,
            1,
            self.crew,
            3 * np.arange(len(places.ends)) + 1,
            order[places.ends],
            np.array([offset for _, _, offset in piece.external_pointers], np.int64),
            *shapes_as_words([kind.fixed_shape for kind in self.outputs]),
            slots * len(piece.table.indexed),
        )

    def _native_context(self) -> NativeContext:
        """A batch whose slots have memory of their own until it is given back."""
        piece, batch = self.piece, self._new()
        checks = len(piece.table.indexed)
        outside = np.zeros(len(batch.slots) * checks, np.int64)
        contexts = [
            piece.new_context(outside[n * checks : (n + 1) * checks])
            for n in range(len(batch.slots))
        ]
        batch.slots[:] = [(c.table.ctypes.data, c.arguments.ctypes.data) for c in contexts]
        sizes = [math.prod(kind.fixed_shape) * kind.dtype.nbytes for kind in self._ends]
        batch.moving[:] = [
            (position, 0, sizes[end] // self.pieces) for position, end, _ in piece.external_pointers
        ]

        def give_back() -> None:
            # Also the batch stays until here: its table has the addresses of its words.
            self._idle.append(batch)
            for context in contexts:
                piece.loaded.arenas.give(context.arena)

        return NativeContext(batch.moving.reshape(-1), batch.table, outside, give_back)

    @property
    def _ends(self) -> tuple[TensorType, ...]:
        return (*self.inputs, *self.outputs)

    def first_piece(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs of the first piece."""
        return {name: array[: len(array) // self.pieces] for name, array in feeds.items()}

    def _addresses(self, ends: Sequence[Array]) -> list[tuple[int, int, int]]:
        """The rows of ``moving`` for these inputs and outputs."""
        places = [(aligned_address(array), array.nbytes // self.pieces) for array in ends]
        return [
            (position, places[end][0] + offset_bytes, places[end][1])
            for position, end, offset_bytes in self.piece.external_pointers
        ]

    def _take(self) -> _Batch:
        try:
            # Not "if self._idle": another thread may take the last one after the question.
            return self._idle.pop()
        except IndexError:
            return self._new()

    def _new(self) -> _Batch:
        """A batch with a slot for each thread that can be at work at one time."""
        piece = self.piece
        busiest = min(self.crew, self.pieces, MOST_THREADS)
        slots = np.zeros((busiest, 2), np.int64)
        moving = np.zeros((len(piece.external_pointers), 3), np.int64)
        words = np.zeros(2 * _WORDS["busy"], np.int64)
        words[_WORDS["slots"]] = slots.ctypes.data
        words[_WORDS["calls"]] = piece.table.count
        words[_WORDS["moving"]] = moving.ctypes.data
        words[_WORDS["count"]] = len(moving)
        chunks = SERIAL if self.crew == 1 else min(self.pieces, MOST_THREADS)
        row = (run_pieces_address(piece.target), words.ctypes.data, self.pieces, chunks)
        return _Batch(slots, moving, words, np.array([row], np.uint64))


def _check_part(
    part: End, shape: tuple[int, ...], sizes: list[int], pieces: int, whole: TensorType
) -> None:
    """Raise ``BackendError`` unless ``pieces`` parts of an input or output are the whole of it; a
    part has this ``shape`` and these ``end_sizes``.
    """
    joined = (shape[0] * pieces, *shape[1:]) if shape else None
    nbytes = math.prod(shape) * part.dtype.nbytes
    is_whole_buffer = sizes == [*fixed(dense_strides(shape)), nbytes]
    if (part.dtype, joined) != (whole.dtype, whole.fixed_shape) or not is_whole_buffer:
        raise BackendError(
            f"{part.name!r} is {whole}, which {pieces} pieces of {whole.with_shape(shape)} do not "
            "make up. Remedy: compile the whole batch as one piece"
        )
