"""Compilation of programs: code generation, the table of calls, kernels loaded to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import accumulate

import numpy as np

from quantglow.codegen.llvm.call_profile import call_facts
from quantglow.codegen.llvm.emission import emit_free_program, emit_program, kernel_calls
from quantglow.codegen.llvm.emitted import (
    CALL_WORK,
    EmittedCall,
    EmittedProgram,
    MemoryRegion,
    Pointer,
)
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernel import KernelCall, call_names
from quantglow.ir.program.program import BufferKind, Fill, Program, View
from quantglow.ir.symbolic.expression import Expression, number
from quantglow.ir.symbolic.guards import Guard, Guards
from quantglow.ir.symbolic.size import Dim, is_free, likely, to_expression
from quantglow.ir.symbolic.straight_line import Condition, Evaluation
from quantglow.memory.planner import MemoryPlan, OrderedPlan
from quantglow.runtime.jit.library import library
from quantglow.runtime.native.buffers import Allocate, Constants, release_freed
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.loaded import GROWTH, Arenas, LoadedProgram, allocator, as_words
from quantglow.runtime.native.program_table import (
    OWN_BASES,
    CallOperands,
    End,
    Places,
    ProgramTable,
)
from quantglow.support import debug
from quantglow.support.arrays import Array

Check = Callable[[], object]
"""Raises an error where work that goes on beside other work is not wanted any more."""


def compile_program(
    program: Program,
    plan: MemoryPlan,
    target: Target,
    threads: int = 1,
    allocate: Allocate | None = None,
    *,
    is_checked: bool = False,
) -> LlvmExecutable:
    """Emit, compile and load every kernel of a program.

    ``allocate`` makes arenas and constants, by default in the process's own memory, where programs
    share equal constants.  ``is_checked``: see ``LoadedProgram``.
    """
    allocate, shared = allocate or allocator(target), allocate is None
    constants = Constants(allocate, target.isa.slack_nbytes, shared)
    with debug.time_stage("emit"):
        emitted = emit_program(program, plan, target, constants.copy)
    return load_program(emitted, threads, allocate, is_checked)


def load_program(
    emitted: EmittedProgram, threads: int, allocate: Allocate, is_checked: bool = False
) -> LlvmExecutable:
    """Compile and load the kernels of an emitted program.  ``allocate`` makes its arenas."""
    return LlvmExecutable.of(load(emitted, threads, Arenas(allocate), is_checked))


def compile_free_program(
    program: Program,
    order: OrderedPlan,
    guards: Guards,
    target: Target,
    threads: int = 1,
    *,
    symbols: Set[str] | None = None,
    is_checked: bool = False,
) -> LoadedProgram:
    """Emit, compile and load a program whose sizes depend on free dimensions.

    It may add guards; the caller closes them.  ``symbols``: those that have values when it
    runs, by default all.  ``is_checked``: see ``LoadedProgram``.
    """
    allocate = allocator(target)
    constants = Constants(allocate, target.isa.slack_nbytes, shared=True)
    with debug.time_stage("emit"):
        emitted = emit_free_program(program, order, target, guards, constants.copy)
    answers = guards.answers(guards.hints.keys() if symbols is None else symbols)
    return load(emitted, threads, Arenas(allocate, GROWTH), is_checked, answers)


def load(
    emitted: EmittedProgram,
    threads: int,
    arenas: Arenas,
    is_checked: bool,
    answers: Iterable[Guard] = (),
) -> LoadedProgram:
    """An emitted program with its kernels; ``answers``: what was decided of its sizes.  While
    verifying, all programs are checked."""
    with debug.time_stage("compile"):
        symbols = kernel_symbols(emitted)
        functions = as_words(library(emitted.target).find_addresses(symbols))
        stripped = emitted.without_texts()
        release_freed()
    table = _build_table(stripped, answers)
    parts = (table, threads, symbols, functions, stripped.constants, arenas)
    return LoadedProgram(*parts, stripped, is_checked or debug.verifying())


def kernel_symbols(emitted: EmittedProgram) -> tuple[str, ...]:
    """Names of the code of each row's kernel, compiled and loaded."""
    kernels, objects = [row.kernel for row in emitted.rows], library(emitted.target)
    if emitted.order is not None:  # texts of programs for all shapes are there already
        return tuple(objects.load_texts(kernel.ir for kernel in kernels))
    names = call_names([row.step for row in emitted.rows], kernels, emitted.target)
    return tuple(objects.load_calls(names, kernels))


def load_free_kernels(
    program: Program, order: OrderedPlan, guards: Guards, target: Target, check: Check
) -> None:
    """``load_kernels`` for ``compile_free_program``."""
    emitted = emit_free_program(program, order, target, guards, np.ascontiguousarray)
    calls = [_check_call(row.kernel, check) for row in emitted.rows]
    library(target).load_texts(call.ir for call in calls)


def load_kernels(program: Program, target: Target, check: Check) -> None:
    """Compile the kernels of a program: ``compile_program`` will find them loaded, also that of a
    program with other constants.  ``check`` is called before each; it may raise.
    """
    steps, calls = zip(*kernel_calls(program, target), strict=True)
    checked_calls = [_check_call(call, check) for call in calls]
    library(target).load_calls(call_names(steps, checked_calls, target), checked_calls)


def _check_call(call: KernelCall, check: Check) -> KernelCall:
    """The same call, whose text is made after a check."""

    def code() -> str:
        check()
        return call.ir

    return replace(call, code=code)


def _build_table(program: EmittedProgram, answers: Iterable[Guard]) -> ProgramTable:
    """The table of an emitted program; ``answers``: what was decided of its sizes."""
    sizes, rows, order = _Sizes(), program.rows, program.order
    work = [float(likely(_work_units(row))) / likely(row.items) for row in rows]
    nbytes = () if order is None else order.nbytes
    parts = (
        np.array(sizes.positions(p.offset_bytes for r in rows for p in r.pointers), np.intp),
        np.array(sizes.positions(row.items for row in rows), np.intp),
        np.array(work, np.float64),
        tuple(sizes.end(*port) for port in program.inputs),
        tuple(sizes.end(*port) for port in program.outputs),
        sizes.positions(op.length for op in program.indexings),
        tuple(str(op.name) for op in program.indexings),
        _program_loops(program),
        _call_operands(program, sizes.evaluation, answers),
        tuple(map(call_facts, program.calls)),
        program.arena_nbytes,
        sizes.positions(nbytes),
        tuple(dict.fromkeys(sizes.positions(filter(is_free, nbytes)))),
        None if order is None else order.arena,
    )
    numbers = sizes.evaluation.program()
    constants = len(program.constants)
    return ProgramTable(
        program.target, program.count, constants, _buffer_places(program), numbers, *parts
    )


def _buffer_places(program: EmittedProgram) -> Places:
    """The places of an emitted program."""
    pointers = [pointer for call in program.rows for pointer in call.pointers]
    arena = OWN_BASES + len(program.constants)
    ends = {MemoryRegion.INPUT: 0, MemoryRegion.OUTPUT: len(program.inputs)}
    external = [
        (position, ends[pointer.place] + pointer.index)
        for position, pointer in enumerate(pointers)
        if pointer.place in ends
    ]
    positions, which = np.array(external, np.int64).reshape(-1, 2).T
    counts = [len(call.pointers) for call in program.rows]
    return Places(
        np.array([_pointer_slot(pointer, arena) for pointer in pointers], np.int64),
        positions,
        which,
        np.cumsum([0, *counts])[: len(counts)],
    )


def _call_operands(
    program: EmittedProgram, numbers: Evaluation, answers: Iterable[Guard]
) -> CallOperands:
    """The distinct operands of a program whose table has these ``numbers``."""
    sizes, pointers = _Sizes(), [pointer for row in program.rows for pointer in row.pointers]
    extents = [(at, p.extent) for at, p in enumerate(pointers) if p.extent is not None]
    rank = max((len(extent.shape) for _, extent in extents), default=0)
    first: dict[tuple[object, ...], int] = {}
    columns = []
    for at, extent in extents:
        missing, pointer = rank - len(extent.shape), pointers[at]
        column = (
            extent.element_nbytes,
            *sizes.positions((*extent.shape, *[1] * missing)),
            *sizes.positions((*extent.strides, *[0] * missing)),
            *sizes.positions((extent.begin, extent.nbytes)),
        )
        offset = numbers.add(to_expression(pointer.offset_bytes))
        if first.setdefault((pointer.place, pointer.index, offset, *column), at) == at:
            columns.append((at, *column))
    table = _narrow(columns).reshape(len(columns), 2 * rank + 4).T
    tested: list[Condition] = [(guard.expression, guard.relation) for guard in answers]
    tested += [(size, ">=") for size in _interiors(program)]
    divisors = (*numbers.divisors(), *sizes.evaluation.divisors())
    tested += [(divisor - number(1), ">=") for divisor in divisors]
    return CallOperands(
        sizes.evaluation.program(tested),
        pointers=table[0],
        element_nbytes=table[1],
        axes=table[2:-2].reshape(2, rank, len(columns)),
        buffer=table[-2:],
        lives=_buffer_lives(program),
    )


def _narrow(values: Sequence[object]) -> Array:
    """Natural numbers in few bytes: programs keep these beside their weights."""
    numbers = np.array(values, np.int64)
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


def _interiors(program: EmittedProgram) -> Iterator[Expression]:
    """Sizes around and in the boxes that fills leave out; none of them is negative."""
    for row in program.rows:
        if isinstance(row.step, Fill):
            for start, size, whole in zip(*row.step.interior, row.step.dst.shape, strict=True):
                yield from map(to_expression, (start, size, whole - start - size))


def _buffer_lives(program: EmittedProgram) -> Array:
    """First and last row that uses each buffer of the arena."""
    count = 0 if program.order is None else len(program.order.buffers)
    lives = np.array([[len(program.rows), -1]] * count, np.int32).reshape(count, 2)
    for place, row in enumerate(program.calls):
        for pointer in (p for call in row.nested() for p in call.pointers):
            if pointer.place is MemoryRegion.ARENA and count:
                first, last = lives[pointer.index]
                lives[pointer.index] = min(first, place), max(last, place)
    return lives


def _pointer_slot(pointer: Pointer, arena: int) -> int:
    """The position of a pointer's base; those of buffers begin at ``arena``."""
    match pointer.place:
        case MemoryRegion.CHECK:
            return 1
        case MemoryRegion.ROW:
            return 2
        case MemoryRegion.ARGUMENT:
            return 3
        case MemoryRegion.CONSTANT:
            return OWN_BASES + pointer.index
        case MemoryRegion.ARENA:
            return arena + pointer.index
    return 0


def _program_loops(program: EmittedProgram) -> tuple[tuple[int, float], ...]:
    """For each loop the position of its trips among the pointers of all rows, and the work of a
    trip."""
    first = accumulate((len(row.pointers) for row in program.rows), initial=0)
    return tuple(
        (position, sum(CALL_WORK + float(likely(call.work)) for call in row.body))
        for position, row in zip(first, program.rows, strict=False)
        if row.body
    )


def _work_units(call: EmittedCall) -> float:
    """The work that threads may share: a loop runs on one."""
    return 0.0 if call.body else call.work


class _Sizes:
    """Sizes, each once."""

    def __init__(self) -> None:
        self.evaluation = Evaluation()

    def position(self, value: Dim) -> int:
        return self.evaluation.add(to_expression(value))

    def positions(self, values: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(map(self.position, values))

    def end(self, name: str, view: View) -> End:
        """An input or output."""
        shape, strides = self.positions(view.shape), self.positions(view.strides)
        nbytes, is_state = self.position(view.buffer.nbytes), view.buffer.kind is BufferKind.STATE
        return End(name, view.type.dtype, shape, strides, nbytes, is_state)
