"""Object files: compilation of IR text, sizes and symbols in their tables, stack of functions.

``object_facts`` reads the tables of ELF, Mach-O, COFF and WebAssembly.  ``object_file`` compiles in
a child process, because LLVM ends the process where it has no instruction for an operation.

The stack of a function comes from LLVM's remarks.  ``"warn-stack-size"`` reports the bytes of a
frame without what scales: processors with vector registers of several widths (RISC-V) spill whole
registers, whose bytes no compiler knows.  The remark on the layout of a frame lists these spills in
units of 64 bits for each 64 bits of a register.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import NamedTuple

import numpy as np

from quantglow.codegen.llvm.isa.target import ObjectFormat, Settings, Target
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError
from quantglow.support.processes.isolation import IsolationError, call_isolated

COFF_HEADER_NBYTES, SECTION_NBYTES, SYMBOL_NBYTES = 20, 40, 18
"""Sizes in COFF."""
COFF_NOT_LOADED = 0x0200_0A00
"""Flags of COFF sections that are discarded, or for linkers."""
COFF_EXTERNAL = 2
"""Class of a symbol that other objects see."""

ELF_SYMBOLS = 2
"""Type of the ELF section with the symbols."""
LOADED = 2
"""Flag of ELF sections that a program holds."""
MADE_BY_LINKERS = {"_GLOBAL_OFFSET_TABLE_", ".TOC."}

MACH_O_HEADER_NBYTES = 32
MACH_O_SYMBOLS, SEGMENT = 2, 25
"""Numbers of Mach-O commands."""
MACH_O_NOT_LOADED = (b"__DWARF", b"__LD")
"""Mach-O segments for debuggers and linkers."""
KIND, MACH_O_EXTERNAL = 0x0E, 0x01
"""Bits of the type of a Mach-O symbol; its kind is 0 if it is undefined."""

WASM_HEADER_NBYTES = 8
IMPORTS, CODE, DATA = 2, 10, 11
"""Numbers of WebAssembly sections."""
FUNCTION, TABLE, MEMORY, GLOBAL = range(4)
"""Kinds of WebAssembly imports."""


@dataclass(frozen=True)
class ObjectFacts:
    """Facts of an object.

    loaded_nbytes  code and data that a program holds, without symbols and relocations
    undefined      symbols that other objects have to define, in alphabetical order
    """

    loaded_nbytes: int
    undefined: tuple[str, ...]


def _text_at(table: bytes, at: int) -> str:
    """The text at an offset, up to the next zero byte."""
    return table[at : table.index(b"\0", at)].decode()


def _read_coff(code: bytes) -> ObjectFacts:
    """The facts of an object."""
    loaded = sum(size for size, flags in _coff_sections(code) if not flags & COFF_NOT_LOADED)
    return ObjectFacts(loaded, tuple(sorted(set(_coff_undefined(code)))))


def _coff_sections(code: bytes) -> Iterator[tuple[int, int]]:
    """Size and flags of each section."""
    (count,) = struct.unpack_from("<H", code, 2)
    for index in range(count):
        at = COFF_HEADER_NBYTES + SECTION_NBYTES * index
        yield struct.unpack_from("<16xI16xI", code, at)


def _coff_undefined(code: bytes) -> Iterator[str]:
    """The names without a section."""
    symbols_at, count = struct.unpack_from("<II", code, 8)
    texts = code[symbols_at + SYMBOL_NBYTES * count :]
    left = 0
    for index in range(count):
        at = symbols_at + SYMBOL_NBYTES * index
        raw, value, section, _, storage, more = struct.unpack_from("<8sIhHBB", code, at)
        if left:
            left -= 1
            continue
        left = more
        if storage == COFF_EXTERNAL and not section and not value:
            long = struct.unpack("<II", raw)
            yield _text_at(texts, long[1]) if not long[0] else raw.rstrip(b"\0").decode()


class Section(NamedTuple):
    """A header of a section, in the order of the file."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


def read_elf(code: bytes) -> ObjectFacts:
    """The facts of an object."""
    order, is_wide = "<" if code[5] == 1 else ">", code[4] == 2
    sections = list(_elf_sections(code, order, is_wide))
    undefined = {
        name
        for section in sections
        if section.type == ELF_SYMBOLS
        for name in _elf_undefined(code, section, sections[section.link], order, is_wide)
    }
    loaded = sum(section.size for section in sections if section.flags & LOADED)
    return ObjectFacts(loaded, tuple(sorted(undefined - MADE_BY_LINKERS)))


def _elf_sections(code: bytes, order: str, is_wide: bool) -> Iterator[Section]:
    """The headers of all sections; if there are too many for its field, the first has the count."""
    layout = struct.Struct(order + ("IIQQQQIIQQ" if is_wide else "10I"))
    (start,) = struct.unpack_from(order + ("Q" if is_wide else "I"), code, 40 if is_wide else 32)
    (count,) = struct.unpack_from(order + "H", code, 60 if is_wide else 48)
    first = Section(*layout.unpack_from(code, start))
    for index in range(count or first.size):
        yield Section(*layout.unpack_from(code, start + index * layout.size))


def _content(code: bytes, section: Section) -> bytes:
    """The bytes of a section."""
    return code[section.offset : section.offset + section.size]


def _elf_undefined(
    code: bytes, symbols: Section, texts: Section, order: str, is_wide: bool
) -> Iterator[str]:
    """The names without a section."""
    layout = struct.Struct(order + ("IBBHQQ" if is_wide else "IIIBBH"))
    table = _content(code, texts)
    for symbol in layout.iter_unpack(_content(code, symbols)):
        name, section = symbol[0], symbol[3 if is_wide else 5]
        if name and not section:
            yield _text_at(table, name)


def _read_mach_o(code: bytes) -> ObjectFacts:
    """The facts of an object."""
    loaded, undefined = 0, set[str]()
    for kind, command in _commands(code):
        if kind == SEGMENT:
            loaded += sum(
                n for segment, n in _mach_o_sections(command) if segment not in MACH_O_NOT_LOADED
            )
        elif kind == MACH_O_SYMBOLS:
            undefined |= set(_mach_o_undefined(code, command))
    return ObjectFacts(loaded, tuple(sorted(undefined)))


def _commands(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each command."""
    (count,) = struct.unpack_from("<I", code, 16)
    at = MACH_O_HEADER_NBYTES
    for _ in range(count):
        kind, size = struct.unpack_from("<II", code, at)
        yield kind, code[at : at + size]
        at += size


def _mach_o_sections(command: bytes) -> Iterator[tuple[bytes, int]]:
    """Segment and size of each section."""
    (count,) = struct.unpack_from("<I", command, 64)
    for index in range(count):
        segment, size = struct.unpack_from("<16x16s8xQ", command, 72 + 80 * index)
        yield segment.rstrip(b"\0"), size


def _mach_o_undefined(code: bytes, command: bytes) -> Iterator[str]:
    """The names without a section, without the underscore of C's names."""
    symbols_at, count, texts_at, nbytes = struct.unpack_from("<4I", command, 8)
    texts = code[texts_at : texts_at + nbytes]
    for name, kind, _, _, _ in struct.iter_unpack("<IBBHQ", code[symbols_at:][: 16 * count]):
        if kind & MACH_O_EXTERNAL and not kind & KIND:
            yield _text_at(texts, name).removeprefix("_")


class Reader:
    """The next numbers and texts of a section."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        """An unsigned number of 7 bits a byte."""
        value, shift = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        """A text behind its length."""
        nbytes = self.number()
        self.at += nbytes
        return self.data[self.at - nbytes : self.at].decode()


def _read_wasm(code: bytes) -> ObjectFacts:
    """The facts of an object; its memory belongs to the program."""
    loaded, undefined = 0, set[str]()
    for kind, section in _wasm_sections(code):
        loaded += len(section) * (kind in (CODE, DATA))
        if kind == IMPORTS:
            undefined |= set(_functions_in(section))
    return ObjectFacts(loaded, tuple(sorted(undefined)))


def _wasm_sections(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each section."""
    reader = Reader(code)
    reader.at = WASM_HEADER_NBYTES
    while reader.at < len(code):
        kind, size = reader.number(), reader.number()
        yield kind, code[reader.at : reader.at + size]
        reader.at += size


def _functions_in(section: bytes) -> Iterator[str]:
    """The names of imported functions."""
    reader = Reader(section)
    for _ in range(reader.number()):
        reader.text()
        name, kind = reader.text(), reader.number()
        if kind == FUNCTION:
            yield name
        if kind in (TABLE, GLOBAL):
            reader.number()
        if kind in (TABLE, MEMORY):
            has_end = reader.number() & 1
            reader.number()
            if has_end:
                reader.number()
        else:
            reader.number()


READERS: dict[ObjectFormat, Callable[[bytes], ObjectFacts]] = {
    ObjectFormat.ELF: read_elf,
    ObjectFormat.MACH_O: _read_mach_o,
    ObjectFormat.COFF: _read_coff,
    ObjectFormat.WASM: _read_wasm,
}


def object_facts(code: bytes, kind: ObjectFormat) -> ObjectFacts:
    """The facts of an object that LLVM wrote."""
    return READERS[kind](code)


REMARKS = "-pass-remarks-analysis=stack-frame-layout"
"""The option by which LLVM reports layouts."""

FRAME = re.compile(r"stack frame size \((\d+)\) exceeds limit \(0\) in function '([^']+)'")
LAYOUT = re.compile(r"^Function: (\S+)\n((?:Offset: .*\n)*)", re.MULTILINE)
SLOT = re.compile(
    r"^Offset: \[SP([-+]\d+)?.*\], Type: \w+, Align: (\d+), Size: (vscale x )?", re.MULTILINE
)
UNIT_NBYTES = 8
"""Bytes of a vector register where ``vscale`` is 1."""

CALL_ALIGN = 16
"""Alignment of the stack where a function begins; more costs the difference at most."""

MOST_VLEN = 65_536
"""Maximum number of bits of a vector register, by RISC-V's specification of vectors."""

PATIENCE_SECONDS = 1200.0
"""Longest time that LLVM may take for one object."""

DEFINITION = re.compile(r"^(define .*?\) nounwind)", re.MULTILINE)
REPORTED = 'noredzone "warn-stack-size"="0"'
"""Functions with these attributes make LLVM report their bytes of stack, all of them: no function
uses what lies below its frame."""
SMALL = "optsize"
"""The attribute of functions whose code counts."""

SHARED = "linkonce_odr"
"""The linkage of constants that several texts define."""


@dataclass(frozen=True)
class StackUse:
    """``nbytes`` of stack, and room for so many vector ``registers`` whose width only the processor
    knows."""

    nbytes: int = 0
    registers: int = 0

    def __add__(self, other: StackUse) -> StackUse:
        return StackUse(self.nbytes + other.nbytes, self.registers + other.registers)

    @staticmethod
    def most(stacks: Iterable[StackUse]) -> StackUse:
        """Enough for any of these."""
        listed = [StackUse(), *stacks]
        return StackUse(max(s.nbytes for s in listed), max(s.registers for s in listed))

    def at(self, vlen: int) -> int:
        """Bytes where a vector register has ``vlen`` bits."""
        return self.nbytes + self.registers * (vlen // 8)

    @property
    def most_nbytes(self) -> int:
        """Bytes on every processor."""
        return self.at(MOST_VLEN)


def parse_frames(report: str) -> dict[str, StackUse]:
    """The frame of each function that takes any stack."""
    fixed = {name: int(nbytes) for nbytes, name in FRAME.findall(report)}
    stacks = {name: StackUse(nbytes) for name, nbytes in fixed.items()}
    for name, slots in LAYOUT.findall(report):
        stacks[name] = stacks.get(name, StackUse()) + _more(slots)
    return {name: stack for name, stack in stacks.items() if stack != StackUse()}


def _more(slots: str) -> StackUse:
    """The vector registers of a layout, and the bytes that align it."""
    align, registers = CALL_ALIGN, 0
    for offset, alignment, scales in SLOT.findall(slots):
        if scales:
            registers = max(registers, -(int(offset or 0) // UNIT_NBYTES))
        else:
            align = max(align, int(alignment))
    return StackUse(align - CALL_ALIGN, registers)


@dataclass(frozen=True, eq=False, repr=False)
class ObjectFile(Concise):
    """An object: its bytes, and the stack that each of its functions takes."""

    code: bytes
    frames: Mapping[str, StackUse]


def object_file(target: Target, texts: Sequence[str], public: Sequence[str]) -> ObjectFile:
    """The object of a target with all functions of some modules; ``public``: the functions that
    other objects see.  Raises ``BackendError``.
    """
    attributes = f"{SMALL} {REPORTED}" if target.saves_code else REPORTED
    texts = [target.isa.legal(text) for text in texts]
    texts += filter(None, [target.isa.routines(texts)])
    marked = (DEFINITION.sub(rf"\1 {attributes}", text) for text in texts)
    arrays = [np.frombuffer(text.encode(), np.uint8) for text in marked]
    facts = {"triple": target.triple, "cpu": target.cpu, "features": target.features}
    more = {"settings": asdict(target.settings), "public": list(public)}
    place = f"{__name__}:compile_here"
    try:
        code, frames = call_isolated(place, arrays, facts | more, seconds=PATIENCE_SECONDS)
    except IsolationError as error:
        raise BackendError(f"LLVM made no object for {target.name}: {error}") from error
    stacks = json.loads(frames.tobytes())
    return ObjectFile(
        code.tobytes(), {name: StackUse(*numbers) for name, numbers in stacks.items()}
    )


def compile_here(
    texts: Sequence[Array],
    triple: str,
    cpu: str,
    features: str,
    settings: Mapping[str, str],
    public: Sequence[str],
) -> list[Array]:
    """The object, and its frames as JSON; runs in the child process."""
    from quantglow.codegen.llvm import compiler

    compiler.set_option(REMARKS)
    compiler.initialize_all()
    generator = compiler.code_generator(triple, cpu, features, Settings(**settings))
    module = compiler.join_modules([text.tobytes().decode() for text in texts])
    module.triple, module.data_layout = triple, str(generator.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name not in public:
            function.linkage = "internal"
    for constant in module.global_variables:
        if constant.linkage.name == SHARED:
            constant.linkage = "internal"
    before = os.fstat(2).st_size  # the parent gave a file
    code = generator.emit_object(module)
    said = os.pread(2, os.fstat(2).st_size - before, before)
    frames = {name: astuple(stack) for name, stack in parse_frames(said.decode()).items()}
    return [np.frombuffer(code, np.uint8), np.frombuffer(json.dumps(frames).encode(), np.uint8)]
