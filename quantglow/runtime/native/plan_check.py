"""Check of a program's plan at one shape: no operand leaves its buffer, none overlap.

A program that comes from a file is checked whenever it is bound to a shape.  The check computes
with the integers that its table of calls will have; it neither reads an expression nor asks what
was proven of it, so that a wrong proof or condition in the text of a graph leads to an error and
not out of a buffer.  Tables in the cache are trusted as the machine code beside them is: which
pointers belong to which call is not checked.

At the first shape all operands are checked at once, in a few operations on arrays.  From then on
those whose numbers vary are checked, each kind once; and buffers, as long as the plan is the same,
for being no larger than those that were found to lie apart.

Most operands of a program for all shapes have the same numbers at each, and many have the same as
others: a decoder's 152 operands have 18 different extents that vary with the length of its cache.
``conditions`` makes one Python function of them, from integers and names that are written here; it
computes with exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.codegen.llvm.table_walk import ENTRY_NBYTES
from quantglow.ir.symbolic.expression import Values
from quantglow.runtime.native.program_table import (
    OWN_BASES,
    Binding,
    End,
    Kind,
    ProgramTable,
    round_up,
)
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.support.errors import FileFormatError

Term = int | str
"""A number that is the same at all shapes, or the text of one that varies."""

Conditions = Callable[[Sequence[int], Sequence[int]], bool]
"""Whether all conditions hold for the numbers of operands and those of the program."""

MOST_NBYTES = 2**50
"""Largest number of a program: sums of such numbers are exact as float64."""
WORD_NBYTES = 8


@dataclass(frozen=True, eq=False, repr=False)
class Apart(Concise):
    """Buffers of one plan that lie apart and inside of the arena, whatever they have up to ``most``
    bytes: by the positions of their numbers, where these vary."""

    buffers: Array
    arena_nbytes: int
    most: Mapping[int, int]

    def holds(self, binding: Binding) -> bool:
        """Whether a binding has this plan, and buffers of no more bytes."""
        if binding.buffers is not self.buffers or binding.arena_nbytes != self.arena_nbytes:
            return False
        numbers = binding.numbers
        return all(0 <= numbers[at] <= most for at, most in self.most.items())


@dataclass(frozen=True, eq=False, repr=False)
class PlanCheck(Concise):
    """The check of one program, whose constants have so many bytes.

    ``_passed``: the last plan that passed, if there is one.
    """

    table: ProgramTable
    constants: Array
    _passed: list[Apart] = field(default_factory=list)

    def checked(self, values: Values, bind: Callable[[Values], Binding]) -> Binding:
        """The binding at these sizes.  Raises ``FileFormatError`` unless the program stays in its
        buffers."""
        try:
            numbers = self.table.operands.numbers.at(values)
            if numbers is None:
                raise _error(values, "what the compiler decided does not hold")
            binding = bind(values)
            offsets = [binding.numbers[at] for at in self._offsets]
            if max(map(abs, (*numbers, *offsets)), default=0) > MOST_NBYTES:
                raise _error(values, "a size is larger than any memory")
        except ArithmeticError as error:
            raise _error(values, str(error)) from None
        if self._passed:
            is_inside = self._conditions(numbers, binding.numbers)
        else:
            is_inside = not self._others_escape and not self._escapes(binding, numbers)
        if not is_inside:
            raise _error(values, "an operand lies outside of its buffer")
        if not (self._passed and self._passed[-1].holds(binding)):
            self._passed[:] = [self._apart(values, binding)]
        return binding

    def _escapes(self, binding: Binding, exact: Sequence[int]) -> bool:
        """Whether a pointer or an element of an operand leaves its memory.

        Numbers are exact as float64; a span that is not is longer than any memory.
        """
        operands, numbers = self.table.operands, np.array(exact, np.float64)
        begin, size = numbers[operands.buffer]
        lengths, strides = numbers[operands.axes]
        spans = (lengths - 1) * strides * operands.element_nbytes
        first = binding.offsets[operands.pointers] - begin + np.minimum(spans, 0).sum(0)
        behind = size - operands.element_nbytes - first - np.abs(spans).sum(0)
        around = begin, self._nbytes(binding)[self._place_of_operand] - begin - size
        parts = (first, behind, *around, lengths.reshape(-1), binding.items)
        if np.concatenate(parts).min(initial=0) >= 0:
            return False
        is_empty = (lengths == 0).any(0)
        first[is_empty] = behind[is_empty] = 0
        return bool(np.concatenate(parts).min() < 0)

    def _apart(self, values: Values, binding: Binding) -> Apart:
        """The sizes up to which the buffers of a plan lie apart, not less than those at hand.
        Raises ``FileFormatError`` if there are none."""
        exact = {at: binding.numbers[at] for _, at in self._varying}
        if min(exact.values(), default=0) >= 0:
            for most in ({at: round_up(nbytes) for at, nbytes in exact.items()}, exact):
                nbytes = self._fixed.copy()
                for place, at in self._varying:
                    nbytes[place] = most[at]
                if not self._overlap(binding, nbytes):
                    return Apart(binding.buffers, binding.arena_nbytes, most)
        raise _error(values, "buffers overlap")

    @cached_property
    def _varying(self) -> list[tuple[int, int]]:
        """The buffers whose bytes vary, and the positions of these among the numbers."""
        results = self.table.numbers.results
        places = enumerate(self.table.buffers)
        return [(place, at) for place, at in places if type(results[at]) is str]

    @cached_property
    def _fixed(self) -> Array:
        """Bytes of each buffer of the arena, 0 where they vary."""
        results = self.table.numbers.results
        if self.table.order is None:
            return np.array([self.table.arena_nbytes], np.int64)
        nbytes = (results[at] for at in self.table.buffers)
        return np.array([n if type(n) is int else 0 for n in nbytes], np.int64)

    def _overlap(self, binding: Binding, nbytes: Array) -> bool:
        """Whether a buffer leaves the arena, or two that are in use together overlap."""
        begin, end = binding.buffers, binding.buffers + nbytes
        one, other = self._together
        is_apart = (end[one] <= begin[other]) | (end[other] <= begin[one])
        is_inside = (begin >= 0) & (end >= begin) & (end <= binding.arena_nbytes)
        return not (is_apart.all() and is_inside.all())

    def _buffers(self, binding: Binding) -> Array:
        """Bytes of each buffer of the arena; that of a program for one shape is the whole arena."""
        if self.table.order is None:
            return np.array([binding.arena_nbytes], np.int64)
        return np.array([binding.numbers[at] for at in self.table.buffers], np.int64)

    def _nbytes(self, binding: Binding) -> Array:
        """Bytes of each place that a pointer leads to: the bases, then inputs and outputs."""
        ends = (*self.table.inputs, *self.table.outputs)
        kinds = (*binding.inputs, *binding.outputs)
        arrays = list(map(_end_nbytes, ends, kinds, [binding.numbers] * len(ends)))
        buffers = self._buffers(binding) if len(self.table.buffers) else [binding.arena_nbytes]
        return np.concatenate((self._own, self.constants, buffers, arrays))

    @cached_property
    def _own(self) -> Array:
        """Bytes of the places that every program has."""
        table, places = self.table, self.table.places
        rows, pointers = len(table.items), len(places.slots)
        checks = WORD_NBYTES * len(table.indexed)
        return np.array([0, checks, ENTRY_NBYTES * rows, WORD_NBYTES * pointers], np.float64)

    def _places(self) -> Array:
        """The position of each pointer's place among ``_nbytes``; 0 for sizes."""
        places = self.table.places
        bases = OWN_BASES + self.table.constants + max(1, len(self.table.buffers))
        positions = places.slots.copy()
        positions[places.external] = bases + places.ends
        return positions

    @cached_property
    def _place_of_operand(self) -> Array:
        return self._places()[self.table.operands.pointers]

    @cached_property
    def _conditions(self) -> Conditions:
        """The conditions of all operands and counts whose numbers vary."""
        table, program = self.table, _terms("p", self.table.numbers.results)
        buffers: list[Term] = [program[at] for at in table.buffers]
        if not buffers:
            buffers.append(table.arena_nbytes if table.order is None else 0)
        arrays = [
            program[end.nbytes]
            if end.is_state
            else _product([*(program[at] for at in end.shape), end.dtype.numpy.itemsize])
            for end in (*table.inputs, *table.outputs)
        ]
        fixed = [int(nbytes) for nbytes in (*self._own, *self.constants)]
        extents = _table_extents(
            table, self._place_of_operand.tolist(), [*fixed, *buffers, *arrays]
        )
        return _conditions(extents, (program[at] for at in table.items))

    @cached_property
    def _offsets(self) -> list[int]:
        """The positions of the offsets of operands, each once."""
        positions: list[int] = self.table.offsets[self.table.operands.pointers].tolist()
        return list(dict.fromkeys(positions))

    @cached_property
    def _others_escape(self) -> bool:
        """Whether a pointer to memory that is no operand leaves it: to packed constants, checks,
        rows and arguments.  These are at the same places for all shapes."""
        table, places = self.table, self._places()
        operands = {(places[at], table.offsets[at]) for at in table.operands.pointers}
        pairs = enumerate(zip(places, table.offsets, strict=True))
        is_other = [at for at, pair in pairs if pair[0] != 0 and pair not in operands]
        nbytes = np.concatenate((self._own, self.constants))
        if (places[is_other] >= len(nbytes)).any():
            return True
        offsets = [table.numbers.results[at] for at in table.offsets[is_other]]
        if not all(type(offset) is int and 0 <= offset < MOST_NBYTES for offset in offsets):
            return True
        return bool((np.array(offsets, np.int64) > nbytes[places[is_other]]).any())

    @cached_property
    def _together(self) -> tuple[Array, Array]:
        """The pairs of buffers that are in use together."""
        lives = self.table.operands.lives
        if len(lives) < 2:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        first, last = lives.T
        together = (first[:, None] <= last) & (first <= last[:, None])
        one, other = np.nonzero(np.triu(together, 1))
        return one, other


def _end_nbytes(end: End, kind: Kind, numbers: Sequence[int]) -> int:
    """Bytes of the array of an input or output; a state's caller made it for the capacity."""
    shape, dtype = kind
    return numbers[end.nbytes] if end.is_state else math.prod(shape) * dtype.itemsize


def _error(values: Values, fault: str) -> FileFormatError:
    sizes = ", ".join(f"{name} = {size}" for name, size in values.items())
    where = f" where {sizes}" if sizes else ""
    return FileFormatError(
        f"a program of this file cannot be run{where}: {fault}. Remedy: save the model again."
    )


@dataclass(frozen=True)
class OperandExtent:
    """An operand: where it begins in the memory that its pointer leads to, its axes as lengths and
    strides in bytes, the bytes of an element; its buffer there, and the bytes of that memory."""

    first: Term
    axes: tuple[tuple[Term, Term], ...]
    element_nbytes: int
    begin: Term
    nbytes: Term
    memory: Term

    @property
    def varies(self) -> bool:
        """Whether a number of it does."""
        axes = (term for axis in self.axes for term in axis)
        return any(
            isinstance(t, str) for t in (self.first, self.begin, self.nbytes, self.memory, *axes)
        )

    def statements(self) -> Iterator[str]:
        """Statements that return False where an element lies outside."""
        behind = f"{self.memory} - {self.begin} - {self.nbytes}"
        yield f"if {self.begin} < 0 or {behind} < 0: return False"
        lengths = [length for length, _ in self.axes if isinstance(length, str)]
        if any(isinstance(length, int) and length < 0 for length, _ in self.axes):
            yield "return False"
        yield from (f"if {length} < 0: return False" for length in lengths)
        below: list[str] = []
        above: list[str] = []
        for length, stride in self.axes:
            span = f"({length} - 1)*{stride}"
            if isinstance(stride, int):
                (below if stride < 0 else above).append(span)
            else:
                below.append(f"min({span}, 0)")
                above.append(f"max({span}, 0)")
        first = " + ".join([f"{self.first} - {self.begin}", *below])
        behind = " + ".join([f"{self.first} - {self.begin} + {self.element_nbytes}", *above])
        is_empty = any(length == 0 for length, _ in self.axes)
        if not is_empty:
            filled = "".join(f" and {length}" for length in dict.fromkeys(lengths))
            yield f"if ({first} < 0 or {behind} > {self.nbytes}){filled}: return False"


def _table_extents(
    table: ProgramTable, places: Sequence[int], memory: Sequence[Term]
) -> Iterator[OperandExtent]:
    """The extents of all operands; ``places``: of each the position of its memory among
    ``memory``."""
    operands = table.operands
    numbers, program = _terms("n", operands.numbers.results), _terms("p", table.numbers.results)
    offsets = table.offsets[operands.pointers].tolist()
    begins, sizes = operands.buffer.tolist()
    lengths, strides = operands.axes.transpose(0, 2, 1).tolist()
    nbytes = operands.element_nbytes.tolist()
    for i, place in enumerate(places):
        axes = tuple(
            (numbers[length], _times(numbers[stride], nbytes[i]))
            for length, stride in zip(lengths[i], strides[i], strict=True)
            if numbers[length] != 1
        )
        begin, size = numbers[begins[i]], numbers[sizes[i]]
        yield OperandExtent(program[offsets[i]], axes, nbytes[i], begin, size, memory[place])


def _terms(name: str, results: Sequence[int | str]) -> list[Term]:
    """The numbers of a straight-line program; those that vary by their position."""
    return [r if type(r) is int else f"{name}[{i}]" for i, r in enumerate(results)]


def _times(term: Term, factor: int) -> Term:
    """A multiple of a number."""
    return term * factor if isinstance(term, int) else f"{term}*{factor}"


def _product(factors: Iterable[Term]) -> Term:
    """The product of numbers."""
    constant, texts = 1, []
    for factor in factors:
        if isinstance(factor, int):
            constant *= factor
        else:
            texts.append(factor)
    return "*".join([*texts, str(constant)]) if texts else constant


def _conditions(extents: Iterable[OperandExtent], counts: Iterable[Term]) -> Conditions:
    """The conditions of the extents that vary, and that counts are not negative."""
    different = dict.fromkeys(extent for extent in extents if extent.varies)
    varying = dict.fromkeys(count for count in counts if isinstance(count, str))
    lines = ["def hold(n, p):"]
    lines += [line for extent in different for line in extent.statements()]
    lines += [f"if {count} < 0: return False" for count in varying]
    names: dict[str, Conditions] = {}
    exec("\n    ".join([*lines, "return True"]), {"min": min, "max": max}, names)
    return names["hold"]
