"""Tables of programs: all that a run takes, as numbers, and these bound to one shape.

A table has no instruction, no expression and no address, so that it can be stored
(``program_store``) and read back faster than it is made (``compilation``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.codegen.llvm.call_profile import CallFacts
from quantglow.codegen.llvm.isa.target import Target
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.symbolic.expression import Values
from quantglow.ir.symbolic.straight_line import StraightLine
from quantglow.ir.types import DType
from quantglow.memory.planner import ArenaOrder
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property

OWN_BASES = 4
"""Bases before those of constants: no memory, the checks, the table, the arguments of all calls."""

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of an array."""

MOST_PLANS = 8
"""Maximum number of memory plans that are kept."""

SIGNIFICANT_BITS = 5
"""Bits of the sizes that a plan is made for: that of a cache which grows serves several calls, and
no buffer is larger by more than a sixteenth."""

NO_VALUES: Values = {}


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
class CallOperands(Concise):
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
    operands: CallOperands
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


@dataclass(frozen=True, eq=False, repr=False)
class Binding(Concise):
    """A program at one shape.

    numbers       of the program
    arena_nbytes  size of the arena
    buffers       offset in the arena of each of its buffers
    offsets       bytes from the base of each pointer, in the order of all calls
    items, work   of each call
    inputs        shapes and types
    outputs       the same
    lengths       of the axes whose indices are checked
    """

    numbers: Sequence[int]
    arena_nbytes: int
    buffers: Array
    offsets: Array
    items: Array
    work: Array
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    lengths: tuple[int, ...]


Checked = Callable[[Values, Callable[[Values], Binding]], Binding]


@dataclass(frozen=True, eq=False, repr=False)
class Bindings(Concise):
    """The bindings of a program; one for a single shape has one.  ``checked``: the binding that a
    function makes; raises an error where a program from a file would leave its buffers."""

    table: ProgramTable
    checked: Checked | None = None
    _plans: dict[tuple[int, ...], tuple[Array, int]] = field(default_factory=dict)

    def at(self, values: Values = NO_VALUES) -> Binding:
        """The binding for values of the symbols."""
        return (
            self.unchecked(values) if self.checked is None else self.checked(values, self.unchecked)
        )

    def unchecked(self, values: Values) -> Binding:
        """The binding as the table has it."""
        table = self.table
        numbers = table.numbers.always_at(values)
        results = np.array(numbers, np.int64)
        buffers, arena_nbytes = self._plan(numbers)
        items = results[table.items]
        shapes = {at: tuple([numbers[i] for i in at]) for at in self._shapes}
        return Binding(
            numbers,
            arena_nbytes,
            buffers,
            results[table.offsets],
            items,
            table.work_of_item * items,
            tuple([(shapes[end.shape], end.dtype.numpy) for end in table.inputs]),
            tuple([(shapes[end.shape], end.dtype.numpy) for end in table.outputs]),
            tuple([numbers[i] for i in table.lengths]),
        )

    def _plan(self, numbers: Sequence[int]) -> tuple[Array, int]:
        """The offsets of the buffers, and the size of the arena."""
        order = self.table.order
        if order is None:
            return np.zeros(1, np.int64), self.table.arena_nbytes
        free = {i: round_up(numbers[i]) for i in self.table.free}
        key = tuple(free.values())
        if (cached := self._plans.get(key)) is not None:
            return cached
        plan = self._planned(order, [free.get(i, numbers[i]) for i in self.table.buffers])
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        return self._plans.setdefault(key, plan)

    @staticmethod
    def _planned(order: ArenaOrder, nbytes: Sequence[int]) -> tuple[Array, int]:
        offsets, arena_nbytes = order.offsets(nbytes)
        return np.array(offsets, np.int64), arena_nbytes

    @cached_property
    def _shapes(self) -> set[tuple[int, ...]]:
        """Positions of the sizes of inputs and outputs; many have the same shape."""
        return {end.shape for end in (*self.table.inputs, *self.table.outputs)}


def end_sizes(end: End, numbers: Sequence[int]) -> list[int]:
    """Strides of an input or output, and the bytes of its buffer."""
    return [numbers[at] for at in (*end.strides, end.nbytes)]


def round_up(nbytes: int) -> int:
    """The size, or the next one of few significant bits that is a multiple of the alignment."""
    step = max(ALIGNMENT, 1 << max(0, nbytes.bit_length() - SIGNIFICANT_BITS))
    return -(-nbytes // step) * step
