"""COFF objects."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quantglow.bundle.objects.tables import ObjectFacts, text_at

COFF_HEADER_NBYTES, SECTION_NBYTES, SYMBOL_NBYTES = 20, 40, 18
COFF_NOT_LOADED = 0x0200_0A00
"""Flags of sections that are discarded, or for linkers."""
COFF_EXTERNAL = 2
"""Class of a symbol that other objects see."""


def read_coff(code: bytes) -> ObjectFacts:
    """The facts of an object."""
    loaded = sum(size for size, flags in coff_sections(code) if not flags & COFF_NOT_LOADED)
    return ObjectFacts(loaded, tuple(sorted(set(coff_undefined(code)))))


def coff_sections(code: bytes) -> Iterator[tuple[int, int]]:
    """Size and flags of each section."""
    (count,) = struct.unpack_from("<H", code, 2)
    for index in range(count):
        at = COFF_HEADER_NBYTES + SECTION_NBYTES * index
        yield struct.unpack_from("<16xI16xI", code, at)


def coff_undefined(code: bytes) -> Iterator[str]:
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
            yield text_at(texts, long[1]) if not long[0] else raw.rstrip(b"\0").decode()
