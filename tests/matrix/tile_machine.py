"""AMX tile registers in NumPy, which kernels call in place of the instructions.

The rules are those of Intel's manual (Software Developer's Manual, volume 2, chapter 3, AMX): a
fault of the processor is a ``fault`` here.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

REGISTERS, ROWS, ROW_NBYTES = 8, 16, 64
POINTER, TILE, PITCH = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_int64


@dataclass
class TileMachine:
    """Eight registers of 16 rows of 64 bytes, as configured; ``faults`` that happened."""

    faults: list[str] = field(default_factory=list)
    products: int = 0
    heights: list[int] = field(default_factory=lambda: [0] * REGISTERS)
    widths: list[int] = field(default_factory=lambda: [0] * REGISTERS)

    def __post_init__(self) -> None:
        self.data = np.zeros((REGISTERS, ROWS, ROW_NBYTES), np.uint8)
        self.entries: dict[str, Any] = {
            "ldtilecfg": ctypes.CFUNCTYPE(None, POINTER)(self.configure),
            "tilerelease": ctypes.CFUNCTYPE(None)(self.release),
            "tileloadd64": ctypes.CFUNCTYPE(None, TILE, POINTER, PITCH)(self.load),
            "tileloaddt164": ctypes.CFUNCTYPE(None, TILE, POINTER, PITCH)(self.load),
            "tilestored64": ctypes.CFUNCTYPE(None, TILE, POINTER, PITCH)(self.store),
            "tdpbusd": ctypes.CFUNCTYPE(None, TILE, TILE, TILE)(self.multiply),
        }

    def translated(self, text: str) -> str:
        """IR that calls these registers instead of the instructions."""
        text = re.sub(r"declare void @llvm\.x86\.(tile|ldtilecfg|tdpbusd)[^\n]*\n", "", text)

        def called(match: re.Match[str]) -> str:
            address = ctypes.cast(self.entries[match[1]], POINTER).value
            return f"call void inttoptr (i64 {address} to ptr)("

        return re.sub(r"call void @llvm\.x86\.(\w*tile\w*|tdpbusd)\(", called, text)

    def check(self, holds: bool, fault: str) -> bool:
        if not holds:
            self.faults.append(fault)
        return holds

    def configure(self, address: int) -> None:
        raw = np.frombuffer(ctypes.string_at(address, 64), np.uint8)
        self.check(raw[0] == 1, "the palette is not 1")
        self.check(not raw[1:16].any() and not raw[32:48].any(), "reserved bytes are not zero")
        self.widths = raw[16:32].view("<u2").tolist()
        self.heights = raw[48:56].tolist()
        sizes = zip(self.widths, self.heights, strict=True)
        fits = all(w <= ROW_NBYTES and h <= ROWS and (w > 0) == (h > 0) for w, h in sizes)
        self.check(fits, "a tile is too large, or has rows without columns")
        self.data[:] = 0

    def release(self) -> None:
        self.heights, self.widths = [0] * REGISTERS, [0] * REGISTERS

    def rows(self, tile: int, address: int, pitch: int) -> list[tuple[int, int]]:
        """Row and address of all rows of a tile."""
        self.check(self.heights[tile] > 0, f"tile {tile} is not configured")
        return [(row, address + row * pitch) for row in range(self.heights[tile])]

    def load(self, tile: int, address: int, pitch: int) -> None:
        self.data[tile] = 0
        for row, at in self.rows(tile, address, pitch):
            width = self.widths[tile]
            self.data[tile, row, :width] = np.frombuffer(ctypes.string_at(at, width), np.uint8)

    def store(self, tile: int, address: int, pitch: int) -> None:
        for row, at in self.rows(tile, address, pitch):
            content = self.data[tile, row, : self.widths[tile]].tobytes()
            ctypes.memmove(at, content, len(content))

    def multiply(self, sums: int, x: int, w: int) -> None:
        rows, columns, depth = self.heights[sums], self.widths[sums] // 4, self.widths[x] // 4
        sizes = (self.heights[x], self.widths[w] // 4, self.heights[w], self.widths[x] % 4)
        self.check(len({sums, x, w}) == 3, "tdpbusd needs three different tiles")
        if not self.check(sizes == (rows, columns, depth, 0), f"sizes differ: {sizes}"):
            return
        left = self.data[x, :rows, : 4 * depth].astype(np.int64)
        right = self.data[w, :depth, : 4 * columns].view(np.int8).astype(np.int64)
        right = right.reshape(depth, columns, 4).transpose(0, 2, 1).reshape(4 * depth, columns)
        target = self.data[sums].view("<i4")
        with np.errstate(over="ignore"):
            target[:rows, :columns] += (left @ right).astype(np.int32)
        self.products += 1
