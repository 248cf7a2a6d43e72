"""The numbers of a program at one shape: what the table of calls and their arguments depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.backends.llvm.runtime.program_table import End, ProgramTable
from quantglow.concise import Concise
from quantglow.foreign_types import Array
from quantglow.lazy import cached_property
from quantglow.memory.arena_order import ALIGNMENT, ArenaOrder
from quantglow.symbolic.expression import Values

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of an array."""

MOST_PLANS = 8
"""Maximum number of memory plans that are kept."""

SIGNIFICANT_BITS = 5
"""Bits of the sizes that a plan is made for: that of a cache which grows serves several calls, and
no buffer is larger by more than a sixteenth."""

NO_VALUES: Values = {}


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
        found = self.table
        numbers = found.numbers.always_at(values)
        results = np.array(numbers, np.int64)
        buffers, arena_nbytes = self._plan(numbers)
        items = results[found.items]
        shapes = {at: tuple([numbers[i] for i in at]) for at in self._shapes}
        return Binding(
            numbers,
            arena_nbytes,
            buffers,
            results[found.offsets],
            items,
            found.work_of_item * items,
            tuple([(shapes[end.shape], end.dtype.numpy) for end in found.inputs]),
            tuple([(shapes[end.shape], end.dtype.numpy) for end in found.outputs]),
            tuple([numbers[i] for i in found.lengths]),
        )

    def _plan(self, numbers: Sequence[int]) -> tuple[Array, int]:
        """The offsets of the buffers, and the size of the arena."""
        order = self.table.order
        if order is None:
            return np.zeros(1, np.int64), self.table.arena_nbytes
        free = {i: rounded(numbers[i]) for i in self.table.free}
        key = tuple(free.values())
        if (known := self._plans.get(key)) is not None:
            return known
        made = self._planned(order, [free.get(i, numbers[i]) for i in self.table.buffers])
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        return self._plans.setdefault(key, made)

    @staticmethod
    def _planned(order: ArenaOrder, nbytes: Sequence[int]) -> tuple[Array, int]:
        offsets, arena_nbytes = order.offsets(nbytes)
        return np.array(offsets, np.int64), arena_nbytes

    @cached_property
    def _shapes(self) -> set[tuple[int, ...]]:
        """Positions of the sizes of inputs and outputs; many have the same shape."""
        return {end.shape for end in (*self.table.inputs, *self.table.outputs)}


def sizes_of(end: End, numbers: Sequence[int]) -> list[int]:
    """Strides of an input or output, and the bytes of its buffer."""
    return [numbers[at] for at in (*end.strides, end.nbytes)]


def rounded(nbytes: int) -> int:
    """The size, or the next one of few significant bits that is a multiple of the alignment."""
    step = max(ALIGNMENT, 1 << max(0, nbytes.bit_length() - SIGNIFICANT_BITS))
    return -(-nbytes // step) * step
