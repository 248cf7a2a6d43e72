"""Objects made executable without LLVM: a linker for the few relocations of generated kernels.

It saves 53 MB of resident memory (46 instead of 99 MB for MNIST) and up to 27 of 247 ms of start,
since a process that finds its kernels in the cache does without LLVM (``python -m benchmarks
memory``, Zen 5, 2026-11-23).

A kernel is position-independent code and constants: its relocations are distances within the
object, and calls of C functions.  Anything else is refused with ``UnlinkableError``, and LLVM's
own linker takes over.  Format: ELF-64 (System V ABI, chapter 4).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.codegen.llvm.isa.interface import Linking
from quantglow.support.errors import OutOfMemoryError
from quantglow.support.processes.system import c_function

HEADER = np.dtype(
    {
        "names": ["ident", "type", "machine", "sections", "count"],
        "formats": ["S6", "<u2", "<u2", "<u8", "<u2"],
        "offsets": [0, 16, 18, 40, 60],
        "itemsize": 64,
    }
)
SECTION = np.dtype(
    "<u4, <u4, <u8, <u8, <u8, <u8, <u4, <u4, <u8, <u8",
).newbyteorder("<")
SECTION.names = ("name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "each")
SYMBOL = np.dtype("<u4, u1, u1, <u2, <u8, <u8")
SYMBOL.names = ("name", "info", "other", "section", "value", "size")
RELOCATION = np.dtype("<u4, <u4, <u4, <u4, <i8")
RELOCATION.names = ("at", "at_high", "kind", "symbol", "addend")

ELF64_LITTLE = b"\x7fELF\x02\x01"
RELOCATABLE = 1
SYMBOLS, RELOCATIONS, ZEROS = 2, 4, 8
WRITABLE, ALLOCATED = 1, 2

ALIGNMENT = 64

_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE_ANONYMOUS = 0x22
_FAILED = ctypes.c_void_p(-1).value


class UnlinkableError(ValueError):
    """The object holds something that kernels do not."""


@dataclass
class LinkedImage:
    """Code and constants of several objects, in which only addresses outside are absolute.

    ``linking`` knows the processor's relocations, ``aligned_address`` finds C functions.
    """

    linking: Linking
    address_of: Callable[[str], int]
    data: bytearray = field(default_factory=bytearray)
    _stubs: dict[str, int] = field(default_factory=dict)

    def place(self, content: bytes, alignment: int) -> int:
        """Append; the offset where it begins."""
        self.data.extend(bytes(-len(self.data) % max(alignment, 1)))
        start = len(self.data)
        self.data.extend(content)
        return start

    def stub(self, function: str) -> int:
        """The offset of code that continues in a C function."""
        if function not in self._stubs:
            jump = self.linking.stub(self.address_of(function))
            self._stubs[function] = self.place(jump, ALIGNMENT)
        return self._stubs[function]

    def add(self, code: bytes, symbol: str) -> int:
        """Link an object; the offset of the function ``symbol`` in it."""
        linked = _Object(code, self.linking.machine)
        offsets = dict(linked.placed(self))
        for section, relocation in linked.relocations():
            if section in offsets:
                self._relocate(linked, offsets, offsets[section], relocation)
        for entry in linked.symbols:
            if entry["section"] in offsets and linked.name(entry) == symbol:
                return offsets[int(entry["section"])] + int(entry["value"])
        raise UnlinkableError(f"the object does not define {symbol!r}")

    def _relocate(
        self, linked: _Object, offsets: Mapping[int, int], start: int, relocation: Any
    ) -> None:
        kind, symbol = int(relocation["kind"]), linked.symbols[relocation["symbol"]]
        section, at = int(symbol["section"]), start + int(relocation["at"])
        if section in offsets:
            target = offsets[section] + int(symbol["value"])
        elif section == 0 and self.linking.is_call(kind):
            target = self.stub(linked.name(symbol))
        else:
            raise UnlinkableError(f"relocation {kind} to section {section}")
        if not self.linking.patch(self.data, at, kind, target + int(relocation["addend"])):
            raise UnlinkableError(f"relocation {kind} to section {section}")


class _Object:
    """The parts of a relocatable object.  Raises ``UnlinkableError`` for other files."""

    def __init__(self, code: bytes, machine: int) -> None:
        self.code = code
        if len(code) < HEADER.itemsize:
            raise UnlinkableError("the object is too short")
        header = np.frombuffer(code, HEADER, 1)[0]
        kind = (header["ident"], int(header["type"]), int(header["machine"]))
        if kind != (ELF64_LITTLE, RELOCATABLE, machine):
            raise UnlinkableError(f"no relocatable ELF object for machine {machine}: {kind}")
        start = int(header["sections"])
        self.sections = np.frombuffer(code, SECTION, int(header["count"]), start)
        (table,) = (s for s in self.sections if s["type"] == SYMBOLS)
        self.symbols = self._entries(table, SYMBOL)
        self._names = self._content(self.sections[table["link"]])

    def _content(self, section: Any) -> bytes:
        start = int(section["offset"])
        return self.code[start : start + int(section["size"])]

    def _entries(self, section: Any, kind: np.dtype[Any]) -> Any:
        return np.frombuffer(self._content(section), kind)

    def name(self, symbol: Any) -> str:
        start = int(symbol["name"])
        return self._names[start : self._names.index(b"\0", start)].decode()

    def placed(self, image: LinkedImage) -> Iterator[tuple[int, int]]:
        """Index and offset in the image of each section that is there at run time."""
        for index, section in enumerate(self.sections):
            if not section["flags"] & ALLOCATED or not section["size"]:
                continue
            if section["flags"] & WRITABLE or section["type"] == ZEROS:
                raise UnlinkableError("the object holds variables")
            yield index, image.place(self._content(section), int(section["align"]))

    def relocations(self) -> Iterator[tuple[int, Any]]:
        """Index of the section that changes, and how."""
        for section in self.sections:
            if section["type"] == RELOCATIONS:
                for relocation in self._entries(section, RELOCATION):
                    yield int(section["info"]), relocation


def link(objects: Mapping[str, bytes], linking: Linking | None) -> dict[str, int]:
    """Addresses of the symbols that each object defines; their code is loaded for good.

    Raises ``UnlinkableError`` when an object, the processor or the system does not allow it.
    """
    if sys.platform != "linux" or linking is None:
        raise UnlinkableError(f"no linker for this target on {sys.platform}")
    image = LinkedImage(linking, _c_function)
    offsets = {symbol: image.add(code, symbol) for symbol, code in objects.items()}
    base = executable_pages(bytes(image.data))
    if not linking.publish(base, len(image.data)):
        raise UnlinkableError("nobody knows how to make code visible to this processor")
    return {symbol: base + offset for symbol, offset in offsets.items()}


def _c_function(name: str) -> int:
    function = c_function(name)
    if function is None:
        raise UnlinkableError(f"there is no C function {name!r}")
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def executable_pages(code: bytes) -> int:
    """The address of executable, read-only pages with these bytes, never released.

    Never: worker threads may still run in them when the interpreter ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    nbytes = max(len(code), 1)
    base = libc.mmap(None, nbytes, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if base in (None, _FAILED):
        raise OutOfMemoryError(nbytes)  # LLVM's linker would abort the process
    ctypes.memmove(base, code, len(code))
    if libc.mprotect(base, nbytes, _READ | _EXECUTE):
        raise UnlinkableError(f"code may not be executed: errno {ctypes.get_errno()}")
    return int(base)
