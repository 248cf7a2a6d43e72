"""ELF objects of 32 and 64 bits, in either byte order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from quantglow.bundle.objects.tables import ObjectFacts, text_at

ELF_SYMBOLS = 2
"""Type of the section with the symbols."""
LOADED = 2
"""Flag of sections that a program holds."""
MADE_BY_LINKERS = {"_GLOBAL_OFFSET_TABLE_", ".TOC."}


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
    sections = list(elf_sections(code, order, is_wide))
    undefined = {
        name
        for section in sections
        if section.type == ELF_SYMBOLS
        for name in elf_undefined(code, section, sections[section.link], order, is_wide)
    }
    loaded = sum(section.size for section in sections if section.flags & LOADED)
    return ObjectFacts(loaded, tuple(sorted(undefined - MADE_BY_LINKERS)))


def elf_sections(code: bytes, order: str, is_wide: bool) -> Iterator[Section]:
    """The headers of all sections; if there are too many for its field, the first has the count."""
    layout = struct.Struct(order + ("IIQQQQIIQQ" if is_wide else "10I"))
    (start,) = struct.unpack_from(order + ("Q" if is_wide else "I"), code, 40 if is_wide else 32)
    (count,) = struct.unpack_from(order + "H", code, 60 if is_wide else 48)
    first = Section(*layout.unpack_from(code, start))
    for index in range(count or first.size):
        yield Section(*layout.unpack_from(code, start + index * layout.size))


def content(code: bytes, section: Section) -> bytes:
    """The bytes of a section."""
    return code[section.offset : section.offset + section.size]


def elf_undefined(
    code: bytes, symbols: Section, texts: Section, order: str, is_wide: bool
) -> Iterator[str]:
    """The names without a section."""
    layout = struct.Struct(order + ("IBBHQQ" if is_wide else "IIIBBH"))
    table = content(code, texts)
    for symbol in layout.iter_unpack(content(code, symbols)):
        name, section = symbol[0], symbol[3 if is_wide else 5]
        if name and not section:
            yield text_at(table, name)
