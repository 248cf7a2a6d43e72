"""A loaded program for all shapes: a new shape costs the arithmetic of its sizes, no code."""

from __future__ import annotations

from dataclasses import dataclass

from quantglow import debug
from quantglow.backends.llvm.emission import emit_free_program
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.jit.library import addresses
from quantglow.backends.llvm.runtime.binding import Bindings, Places
from quantglow.backends.llvm.runtime.buffers import Constants, release_freed
from quantglow.backends.llvm.runtime.executable import (
    Arenas,
    LlvmExecutable,
    addresses_of,
    allocator,
    as_words,
)
from quantglow.concise import Concise
from quantglow.instr.program import Program
from quantglow.memory.ordered_plan import OrderedPlan
from quantglow.symbolic.expression import Values
from quantglow.symbolic.guards import Guards
from quantglow.types import Array

GROWTH = 2
"""A new arena is at least so many times as large as the largest before."""


@dataclass(frozen=True, eq=False, repr=False)
class FreeExecutable(Concise):
    """Kernels, constants and arenas that the executables of all shapes share."""

    program: EmittedProgram
    guards: Guards
    places: Places
    bindings: Bindings
    threads: int
    kernels: Array
    constants: Array
    arenas: Arenas

    def at(self, values: Values) -> LlvmExecutable:
        """The executable for values of the symbols at which the guards hold."""
        binding = self.bindings.at(values)
        return LlvmExecutable(
            self.program,
            self.places,
            binding,
            self.threads,
            self.kernels,
            self.constants,
            self.arenas,
        )


def compile_free_program(
    program: Program, order: OrderedPlan, guards: Guards, target: Target, threads: int = 1
) -> FreeExecutable:
    """Emit, compile and load a program whose sizes depend on free dimensions.

    It may add guards; the caller closes them.
    """
    allocate = allocator(target)
    owned = Constants(allocate, target.isa.slack_nbytes, shared=True)
    with debug.timed("emit"):
        emitted = emit_free_program(program, order, target, guards, owned.copy)
    with debug.timed("compile"):
        kernels = as_words(addresses(target, [call.kernel.ir for call in emitted.rows]))
        kept = emitted.without_texts()
        release_freed()
    places, arenas = Places.of(emitted), Arenas(allocate, GROWTH)
    constants = addresses_of(kept.constants)
    return FreeExecutable(kept, guards, places, Bindings(kept), threads, kernels, constants, arenas)
