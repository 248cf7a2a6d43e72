"""Objects of WebAssembly."""

from __future__ import annotations

from collections.abc import Iterator

from quantglow.bundle.objects.tables import ObjectFacts

WASM_HEADER_NBYTES = 8
IMPORTS, CODE, DATA = 2, 10, 11
"""Numbers of sections."""
FUNCTION, TABLE, MEMORY, GLOBAL = range(4)
"""Kinds of imports."""


class Reader:
    """The next numbers and texts of a section."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        """An unsigned number of 7 bits a byte."""
        found, shift = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def text(self) -> str:
        """A text behind its length."""
        nbytes = self.number()
        self.at += nbytes
        return self.data[self.at - nbytes : self.at].decode()


def read_wasm(code: bytes) -> ObjectFacts:
    """The facts of an object; its memory belongs to the program."""
    loaded, undefined = 0, set[str]()
    for kind, section in wasm_sections(code):
        loaded += len(section) * (kind in (CODE, DATA))
        if kind == IMPORTS:
            undefined |= set(functions_in(section))
    return ObjectFacts(loaded, tuple(sorted(undefined)))


def wasm_sections(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each section."""
    reader = Reader(code)
    reader.at = WASM_HEADER_NBYTES
    while reader.at < len(code):
        kind, size = reader.number(), reader.number()
        yield kind, code[reader.at : reader.at + size]
        reader.at += size


def functions_in(section: bytes) -> Iterator[str]:
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
