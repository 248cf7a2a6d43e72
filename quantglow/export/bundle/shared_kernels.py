"""Kernels that differ in numbers only as one kernel that takes these numbers as operands.

Layers of other sizes, strides and zero points have texts that are equal but for literals.  Where
flash counts, each set of such kernels becomes one: the literals that differ are loaded from a
constant with the sizes of all calls, of which each call passes its own row.  The integers that a
kernel computes stay the same, because no instruction changes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantglow.codegen.llvm.emitted import EmittedCall, EmittedProgram, MemoryRegion, Pointer
from quantglow.codegen.llvm.isa.interface import Sharing
from quantglow.support.arrays import Array

ROOM_KIND = "room"
MOST_OPERANDS = 16
"""Numbers that a shared kernel takes, at most: more of them cost time."""
SLOT_NBYTES, WORD_NBYTES = 8, 4
ENTRY = "entry:\n"

BLOCKS = re.compile(r"^(?=\S+:$)", re.MULTILINE)
OPERATION = re.compile(
    r"  %\S+ = (?:add|sub|mul|udiv|fadd|fsub|fmul|(icmp) \w+) (i32|float) ([^\s,]+), ([^\s,]+)$"
)
ADDRESS = re.compile(r"  %\S+ = getelementptr i8, ptr %\S+, (i32) ([^\s,]+)$")
SPLAT = re.compile(r"(?:^|[ ,(])(<\d+ x (i8|i16|i32|float)>)[^<]*?(splat \(\2 ([^)]+)\))")
"""Operands that may be registers as well as literals."""
ROOM = re.compile(r"  %\S+ = alloca \[(\d+) x i8\], align \d+$")
"""Bytes on the stack: the largest of all kernels serves each."""

Column = tuple[str, ...]
"""A literal of one place in each of some kernels."""


@dataclass(frozen=True)
class Literal:
    """A number in a text: where it stands, its type, and the type and text of the number itself.

    In innermost loops, numbers of which addresses are made stay as they are: processors have them
    in their instructions, and would need registers and additions for operands.
    """

    begin: int
    end: int
    kind: str
    element: str
    text: str
    is_part_of_address: bool = False


def literals(text: str, sharing: Sharing) -> Iterator[Literal]:
    """The numbers in the body of a kernel that may become operands."""
    at = _body_begins(text)
    for block in BLOCKS.split(text[at:]):
        keeps = sharing is Sharing.OUTER and _is_loop(block)
        for line in block.splitlines(keepends=True):
            for number in _line_literals(line.rstrip("\n")):
                if not (keeps and number.is_part_of_address):
                    yield replace(number, begin=at + number.begin, end=at + number.end)
            at += len(line)


def _is_loop(block: str) -> bool:
    """Whether a block of instructions is an innermost loop: it branches to itself."""
    label = block.partition(":")[0]
    return f" label %{label}," in block


def _body_begins(text: str) -> int:
    """The position behind the entry of the kernel: functions that it calls may stand before it."""
    return text.index(ENTRY, text.index("@kernel(")) + len(ENTRY)


def _line_literals(line: str) -> Iterator[Literal]:
    """The same in one line, wherever it is."""
    if match := OPERATION.match(line):
        compared, kind, *operands = match.groups()
        for group, operand in enumerate(operands, start=3):
            if not operand.startswith("%"):
                is_address = kind == "i32" and not compared
                yield Literal(*match.span(group), kind, kind, operand, is_address)
    elif match := ROOM.match(line):
        yield Literal(*match.span(1), ROOM_KIND, ROOM_KIND, match[1])
    elif (match := ADDRESS.match(line)) and not match[2].startswith("%"):
        yield Literal(*match.span(2), match[1], match[1], match[2], True)
    else:
        for match in SPLAT.finditer(line):
            yield Literal(*match.span(3), match[1], match[2], match[4])


@dataclass
class Kernels:
    """Kernels of one skeleton, and the literals of each."""

    text: str
    places: Sequence[Literal]
    values: list[tuple[str, ...]] = field(default_factory=list)

    def operands(self, values: Sequence[tuple[str, ...]]) -> dict[Column, Literal]:
        """The distinct columns of literals that differ, each with its first place."""
        columns = zip(self.places, zip(*values, strict=True), strict=True)
        operands = dict[Column, Literal]()
        for place, column in columns:
            if len(set(column)) > 1 and place.kind != ROOM_KIND:
                operands.setdefault(column, place)
        return operands

    def takes(self, more: tuple[str, ...]) -> bool:
        """Whether a further kernel fits."""
        return len(self.operands([*self.values, more])) <= MOST_OPERANDS

    def passed(self) -> list[list[int]]:
        """The operands of each kernel."""
        operands = self.operands(self.values).items()
        words = [[word(place.element, text) for text in column] for column, place in operands]
        return [[column[kernel] for column in words] for kernel in range(len(self.values))]

    def shared(self, pointers: int) -> str:
        """The text of all of them, behind so many pointers."""
        numbers = {column: index for index, column in enumerate(self.operands(self.values))}
        pieces, loads, done = list[str](), dict[str, str](), 0
        for place, column in zip(self.places, zip(*self.values, strict=True), strict=True):
            if place.kind == ROOM_KIND:
                name = max(column, key=int)
            elif column in numbers:
                name = _operand(place, numbers[column], loads)
            else:
                continue
            pieces += [self.text[done : place.begin], name]
            done = place.end
        text, first = "".join([*pieces, self.text[done:]]), _body_begins(self.text)
        beginning = [_sizes_pointer(pointers)] * bool(numbers)
        return "".join([text[:first], *beginning, *loads.values(), text[first:]])


def _operand(place: Literal, number: int, loads: dict[str, str]) -> str:
    """The name of an operand where it takes the place of a literal; ``loads`` has instructions by
    the name that they define."""
    name = f"%size{number}.{place.element}"
    loads.setdefault(name, load(name, place.element, WORD_NBYTES * number))
    if place.kind == place.element:
        return name
    whole = f"{name}.{place.kind.split()[0][1:]}"
    loads.setdefault(whole, _spread(whole, name, place))
    return whole


def _sizes_pointer(pointers: int) -> str:
    """Instructions that load the address of a call's sizes from behind so many pointers."""
    return (
        f"  %sizes.at = getelementptr i8, ptr %args, i32 {SLOT_NBYTES * pointers}\n"
        f"  %sizes = load ptr, ptr %sizes.at, align {SLOT_NBYTES}\n"
    )


def load(name: str, element: str, offset_bytes: int) -> str:
    """Instructions that load an operand."""
    return (
        f"  {name}.at = getelementptr i8, ptr %sizes, i32 {offset_bytes}\n"
        f"  {name} = load {element}, ptr {name}.at, align {WORD_NBYTES}\n"
    )


def _spread(name: str, source: str, place: Literal) -> str:
    """Instructions that copy an operand to all lanes."""
    kind, count = place.kind, place.kind.split()[0][1:]
    return (
        f"  {name}.one = insertelement {kind} poison, {place.element} {source}, i32 0\n"
        f"  {name} = shufflevector {kind} {name}.one, {kind} poison, "
        f"<{count} x i32> zeroinitializer\n"
    )


def word(element: str, text: str) -> int:
    """The bits of a literal as an operand: LLVM writes float32 as float64."""
    if element != "float":
        return int(text)
    digits = text.removeprefix("0x")
    value = (
        float(text) if digits == text else struct.unpack(">d", bytes.fromhex(digits.zfill(16)))[0]
    )
    return int.from_bytes(struct.pack("<f", value), "little")


def with_shared_kernels(program: EmittedProgram) -> EmittedProgram:
    """The program with one kernel in place of several; programs with loops stay as they are, since
    their tables count pointers.
    """
    sharing = program.target.isa.sharing
    if sharing is Sharing.NONE or any(row.body for row in program.rows):
        return program
    pointers = {row.kernel.ir: len(row.pointers) for row in program.rows}
    reused = dict[str, tuple[str, list[int]]]()
    for kernels, texts in group(list(pointers), sharing):
        shared = kernels.shared(pointers[texts[0]])
        reused.update(zip(texts, ((shared, words) for words in kernels.passed()), strict=True))
    sizes = CodeSizes(len(program.constants))
    rows = tuple(sizes.call(row, *reused[row.kernel.ir]) for row in program.rows)
    return replace(program, rows=rows, constants=(*program.constants, *sizes.constants))


@dataclass
class CodeSizes:
    """The operands of all calls, one after the other, as constant number ``index``."""

    index: int
    words: list[int] = field(default_factory=list)

    @property
    def constants(self) -> tuple[Array, ...]:
        """The constant, if there are operands."""
        return (np.array(self.words, np.int64).astype(np.int32),) * bool(self.words)

    def call(self, row: EmittedCall, text: str, operands: Sequence[int]) -> EmittedCall:
        """The call of a shared kernel."""
        kernel = replace(row.kernel, code=text)
        if not operands:
            return replace(row, kernel=kernel)
        at = Pointer(MemoryRegion.CONSTANT, self.index, WORD_NBYTES * len(self.words))
        self.words += operands
        return replace(row, kernel=kernel, pointers=(*row.pointers, at))


def group(texts: Sequence[str], sharing: Sharing) -> list[tuple[Kernels, list[str]]]:
    """Kernels that can be one, and the texts of each."""
    groups = dict[str, list[tuple[Kernels, list[str]]]]()
    for text in texts:
        places = list(literals(text, sharing))
        values = tuple(place.text for place in places)
        group = groups.setdefault(_skeleton(text, places), [])
        fitting = (entry for entry in group if entry[0].takes(values))
        kernels, members = next(fitting, (None, []))
        if kernels is None:
            kernels = Kernels(text, places)
            group.append((kernels, members))
        kernels.values.append(values)
        members.append(text)
    return [entry for group in groups.values() for entry in group]


def _skeleton(text: str, places: Sequence[Literal]) -> str:
    """The text without these literals."""
    ends = [0, *(place.end for place in places)]
    begins = [*(place.begin for place in places), len(text)]
    return "\0".join(text[a:b] for a, b in zip(ends, begins, strict=True))
