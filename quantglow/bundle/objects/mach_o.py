"""Mach-O objects of 64 bits."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quantglow.bundle.objects.tables import ObjectFacts, text_at

MACH_O_HEADER_NBYTES = 32
MACH_O_SYMBOLS, SEGMENT = 2, 25
"""Commands."""
MACH_O_NOT_LOADED = (b"__DWARF", b"__LD")
"""Segments for debuggers and linkers."""
KIND, MACH_O_EXTERNAL = 0x0E, 0x01
"""Bits of a symbol's type; its kind is 0 if it is undefined."""


def read_mach_o(code: bytes) -> ObjectFacts:
    """The facts of an object."""
    loaded, undefined = 0, set[str]()
    for kind, command in commands(code):
        if kind == SEGMENT:
            loaded += sum(
                n for segment, n in mach_o_sections(command) if segment not in MACH_O_NOT_LOADED
            )
        elif kind == MACH_O_SYMBOLS:
            undefined |= set(mach_o_undefined(code, command))
    return ObjectFacts(loaded, tuple(sorted(undefined)))


def commands(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each command."""
    (count,) = struct.unpack_from("<I", code, 16)
    at = MACH_O_HEADER_NBYTES
    for _ in range(count):
        kind, size = struct.unpack_from("<II", code, at)
        yield kind, code[at : at + size]
        at += size


def mach_o_sections(command: bytes) -> Iterator[tuple[bytes, int]]:
    """Segment and size of each section."""
    (count,) = struct.unpack_from("<I", command, 64)
    for index in range(count):
        segment, size = struct.unpack_from("<16x16s8xQ", command, 72 + 80 * index)
        yield segment.rstrip(b"\0"), size


def mach_o_undefined(code: bytes, command: bytes) -> Iterator[str]:
    """The names without a section, without the underscore of C's names."""
    symbols_at, count, texts_at, nbytes = struct.unpack_from("<4I", command, 8)
    texts = code[texts_at : texts_at + nbytes]
    for name, kind, _, _, _ in struct.iter_unpack("<IBBHQ", code[symbols_at:][: 16 * count]):
        if kind & MACH_O_EXTERNAL and not kind & KIND:
            yield text_at(texts, name).removeprefix("_")
