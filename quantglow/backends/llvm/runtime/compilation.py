"""Programs compiled: code generation, then kernels and constants in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quantglow import debug
from quantglow.backends.llvm.emission import emit_free_program, emit_program, kernel_calls
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.identity import call_names
from quantglow.backends.llvm.jit.library import library
from quantglow.backends.llvm.kernel import KernelCall
from quantglow.backends.llvm.runtime.buffers import Allocate, Constants, release_freed
from quantglow.backends.llvm.runtime.executable import LlvmExecutable
from quantglow.backends.llvm.runtime.loaded import (
    GROWTH,
    Arenas,
    LoadedProgram,
    allocator,
    as_words,
)
from quantglow.backends.llvm.runtime.tabulation import table_of
from quantglow.instr.program import Program
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.memory.planner import MemoryPlan
from quantglow.symbolic.guards import Guards

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
    with debug.timed("emit"):
        emitted = emit_program(program, plan, target, constants.copy)
    return load_program(emitted, threads, allocate, is_checked)


def load_program(
    emitted: EmittedProgram, threads: int, allocate: Allocate, is_checked: bool = False
) -> LlvmExecutable:
    """Compile and load the kernels of an emitted program.  ``allocate`` makes its arenas."""
    return LlvmExecutable.of(loaded(emitted, threads, Arenas(allocate), None, is_checked))


def compile_free_program(
    program: Program,
    order: OrderedPlan,
    guards: Guards,
    target: Target,
    threads: int = 1,
    *,
    is_checked: bool = False,
) -> LoadedProgram:
    """Emit, compile and load a program whose sizes depend on free dimensions.

    It may add guards; the caller closes them.  ``is_checked``: see ``LoadedProgram``.
    """
    allocate = allocator(target)
    constants = Constants(allocate, target.isa.slack_nbytes, shared=True)
    with debug.timed("emit"):
        emitted = emit_free_program(program, order, target, guards, constants.copy)
    return loaded(emitted, threads, Arenas(allocate, GROWTH), guards, is_checked)


def loaded(
    emitted: EmittedProgram,
    threads: int,
    arenas: Arenas,
    guards: Guards | None,
    is_checked: bool,
) -> LoadedProgram:
    """An emitted program with its kernels; ``guards``: those of its sizes.  While verifying, all
    programs are checked."""
    with debug.timed("compile"):
        symbols = symbols_of(emitted)
        functions = as_words(library(emitted.target).addresses_of(symbols))
        kept = emitted.without_texts()
        release_freed()
    table = table_of(kept, guards)
    parts = (table, threads, symbols, functions, kept.constants, arenas)
    return LoadedProgram(*parts, kept, is_checked or debug.verifying())


def symbols_of(emitted: EmittedProgram) -> tuple[str, ...]:
    """Names of the code of each row's kernel, compiled and loaded."""
    kernels, known = [row.kernel for row in emitted.rows], library(emitted.target)
    if emitted.order is not None:  # texts of programs for all shapes are there already
        return tuple(known.load_texts(kernel.ir for kernel in kernels))
    names = call_names([row.step for row in emitted.rows], kernels, emitted.target)
    return tuple(known.load_calls(names, kernels))


def load_kernels(program: Program, target: Target, check: Check) -> None:
    """Compile the kernels of a program: ``compile_program`` will find them loaded, also that of a
    program with other constants.  ``check`` is called before each; it may raise.
    """
    steps, calls = zip(*kernel_calls(program, target), strict=True)
    made = [checked(call, check) for call in calls]
    library(target).load_calls(call_names(steps, made, target), made)


def checked(call: KernelCall, check: Check) -> KernelCall:
    """The same call, whose text is made after a check."""

    def code() -> str:
        check()
        return call.ir

    return replace(call, code=code)
