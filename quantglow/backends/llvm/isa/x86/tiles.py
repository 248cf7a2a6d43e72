"""AMX: eight registers of 16 rows of 64 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value
from quantglow.backends.llvm.isa.x86.features import octets
from quantglow.foreign_types import Array

CONFIG_NBYTES, WIDTHS_AT, HEIGHTS_AT = 64, 16, 48
"""Operand of ``ldtilecfg`` (palette 1): 16-bit widths in bytes, 8-bit numbers of rows."""

REQUEST = octets("B8 9E000000 BF 23100000 BE 12000000 0F05 C3")
"""``mov eax, 158; mov edi, 0x1023; mov esi, 18; syscall; ret``: see ``tile_permission``."""


class AmxTiles:
    """The tile registers of AMX-INT8."""

    registers = 8
    rows = 16
    row_nbytes = 64

    def configure(self, b: Builder, sizes: Sequence[tuple[int, int]]) -> None:
        values = ", ".join(f"i8 {value}" for value in self._configuration(sizes))
        b.declarations["tiles"] = (
            f"@tiles = private unnamed_addr constant [{CONFIG_NBYTES} x i8] [{values}], "
            f"align {CONFIG_NBYTES}"
        )
        b.call("llvm.x86.ldtilecfg", "void", ("ptr", "@tiles"))

    def _configuration(self, sizes: Sequence[tuple[int, int]]) -> Array:
        found = np.zeros(CONFIG_NBYTES, np.uint8)
        found[0] = 1
        widths = found[WIDTHS_AT : WIDTHS_AT + 2 * self.registers].view("<u2")
        heights = found[HEIGHTS_AT : HEIGHTS_AT + self.registers]
        heights[:], widths[:] = np.transpose(sizes)
        return found

    def release(self, b: Builder) -> None:
        b.call("llvm.x86.tilerelease", "void")

    def permission(self, name: str, triple: str) -> str:
        """Linux wants to be asked once in each process; to ask again does no harm."""
        if "linux" not in triple:
            return ""
        return f"define internal i64 @{name}() nounwind {REQUEST} {{\n  unreachable\n}}\n"

    def load(self, b: Builder, register: int, pointer: Value, pitch: int) -> None:
        self._move(b, "tileloadd64", register, pointer, pitch)

    def load_past_first_cache(self, b: Builder, register: int, pointer: Value, pitch: int) -> None:
        self._move(b, "tileloaddt164", register, pointer, pitch)

    def store(self, b: Builder, register: int, pointer: Value, pitch: int) -> None:
        self._move(b, "tilestored64", register, pointer, pitch)

    def _move(self, b: Builder, name: str, register: int, pointer: Value, pitch: int) -> None:
        arguments = (("i8", str(register)), ("ptr", pointer), ("i64", str(pitch)))
        b.call(f"llvm.x86.{name}", "void", *arguments)

    def multiply(self, b: Builder, sums: int, x: int, w: int) -> None:
        b.call("llvm.x86.tdpbusd", "void", *(("i8", str(r)) for r in (sums, x, w)))
