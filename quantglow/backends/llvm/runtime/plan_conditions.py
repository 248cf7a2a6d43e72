"""The extents of operands as conditions on the numbers of a program, in one Python function.

Most operands of a program for all shapes have the same numbers at each, and many have the same as
others: a decoder's 152 operands have 18 different extents that vary with the length of its cache.
The function is made of integers and of names that are written here; it computes with exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quantglow.backends.llvm.runtime.program_table import ProgramTable

Term = int | str
"""A number that is the same at all shapes, or the text of one that varies."""

Conditions = Callable[[Sequence[int], Sequence[int]], bool]
"""Whether all conditions hold for the numbers of operands and those of the program."""


@dataclass(frozen=True)
class Extent:
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


def extents_of(
    table: ProgramTable, places: Sequence[int], memory: Sequence[Term]
) -> Iterator[Extent]:
    """The extents of all operands; ``places``: of each the position of its memory among
    ``memory``."""
    operands = table.operands
    numbers, program = terms("n", operands.numbers.results), terms("p", table.numbers.results)
    offsets = table.offsets[operands.pointers].tolist()
    begins, sizes = operands.buffer.tolist()
    lengths, strides = operands.axes.transpose(0, 2, 1).tolist()
    nbytes = operands.element_nbytes.tolist()
    for i, place in enumerate(places):
        axes = tuple(
            (numbers[length], times(numbers[stride], nbytes[i]))
            for length, stride in zip(lengths[i], strides[i], strict=True)
            if numbers[length] != 1
        )
        begin, size = numbers[begins[i]], numbers[sizes[i]]
        yield Extent(program[offsets[i]], axes, nbytes[i], begin, size, memory[place])


def terms(name: str, results: Sequence[int | str]) -> list[Term]:
    """The numbers of a straight-line program; those that vary by their position."""
    return [r if type(r) is int else f"{name}[{i}]" for i, r in enumerate(results)]


def times(term: Term, factor: int) -> Term:
    """A multiple of a number."""
    return term * factor if isinstance(term, int) else f"{term}*{factor}"


def product(factors: Iterable[Term]) -> Term:
    """The product of numbers."""
    constant, texts = 1, []
    for factor in factors:
        if isinstance(factor, int):
            constant *= factor
        else:
            texts.append(factor)
    return "*".join([*texts, str(constant)]) if texts else constant


def conditions(extents: Iterable[Extent], counts: Iterable[Term]) -> Conditions:
    """The conditions of the extents that vary, and that counts are not negative."""
    different = dict.fromkeys(extent for extent in extents if extent.varies)
    varying = dict.fromkeys(count for count in counts if isinstance(count, str))
    lines = ["def hold(n, p):"]
    lines += [line for extent in different for line in extent.statements()]
    lines += [f"if {count} < 0: return False" for count in varying]
    names: dict[str, Conditions] = {}
    exec("\n    ".join([*lines, "return True"]), {"min": min, "max": max}, names)
    return names["hold"]
