"""Sizes and symbols in the tables of objects: ELF, Mach-O, COFF and WebAssembly."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quantglow.codegen.llvm.isa.target import ObjectFormat

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
