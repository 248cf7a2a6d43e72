"""Tables of programs: all that running an ``EmittedProgram`` takes, as numbers.

A table has no instruction, no expression and no address, so that it can be stored
(``stored_programs``) and read back faster than it is made (``tabulation``).
"""

from __future__ import annotations

from dataclasses import dataclass

from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.runtime.call_times import CallFacts
from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.lazy import cached_property
from quantglow.memory.arena_order import ArenaOrder
from quantglow.symbolic.straight_line import StraightLine
from quantglow.types import DType

OWN_BASES = 4
"""Bases before those of constants: no memory, the checks, the table, the arguments of all calls."""


@dataclass(frozen=True)
class End:
    """An input or output: its name and type, and the positions of the sizes of its shape, of its
    strides and of the bytes of its buffer among the numbers of the program.  ``is_state``: it is
    part of a state, whose buffer has more rows."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    is_state: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Places(Concise):
    """The base of each pointer of a program: the same at all shapes.

    slots     position among the bases: 0 (no memory), the checks, the table, the arguments of all
              calls, constants, buffers of the arena
    external  positions of the pointers to inputs and outputs
    ends      the input or output of each of these
    first     position of the first pointer of each row
    """

    slots: Array
    external: Array
    ends: Array
    first: Array


@dataclass(frozen=True, eq=False, repr=False)
class Operands(Concise):
    """The operands of all kernels, for the check of plans (``plan_check``).

    numbers         of the operands, where all that the compiler decided holds
    pointers        position of each operand's pointer among all pointers
    axes            of each operand its shape and its strides: 2 x rank x operands
    element_nbytes  of each operand
    buffer          of each operand's buffer its beginning and its bytes: 2 x operands
    lives           first and last row that uses each buffer of the arena

    Axes and buffers are positions among these ``numbers``.
    """

    numbers: StraightLine
    pointers: Array
    axes: Array
    element_nbytes: Array
    buffer: Array
    lives: Array


@dataclass(frozen=True, eq=False, repr=False)
class ProgramTable(Concise):
    """The rows of a program; sizes are positions among its ``numbers``.

    count         rows that are in no body of a loop
    constants     number of constants
    offsets       bytes from the base of each pointer
    items         of each row
    work_of_item  of each row; a loop runs on one thread and has none to share
    inputs        in the order of the program
    outputs       the same
    lengths       of the axes whose indices are checked, and ``indexed``, the names of the operators
    loops         position of the trips among all pointers, and the work of a trip
    operands      for the check of its plan
    calls         what timelines and profiles show of each row before ``count``
    arena_nbytes  memory of all values in between, or
    buffers       bytes of each buffer, those of them that are ``free``, and their ``order``
    """

    target: Target
    count: int
    constants: int
    places: Places
    numbers: StraightLine
    offsets: Array
    items: Array
    work_of_item: Array
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    lengths: tuple[int, ...]
    indexed: tuple[str, ...]
    loops: tuple[tuple[int, float], ...]
    operands: Operands
    calls: tuple[CallFacts, ...]
    arena_nbytes: int
    buffers: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    order: ArenaOrder | None = None

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(end.name for end in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(end.name for end in self.outputs)
