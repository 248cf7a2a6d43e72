"""Look-up of bytes in tables of 256 entries, in sixteen registers of AArch64."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Builder, Value, splat
from quantglow.foreign_types import Array

KIND = "<16 x i8>"
QUARTERS = 4
"""``tbl`` and ``tbx`` look up in 64 entries; an index beyond them gives zero, or what was there."""
QUARTER = 64
HALF = 128


class LookUpTable:
    """One ``tbl`` and three ``tbx``, each with indices that count from its own quarter."""

    unroll = 2
    entries_at = 0

    def packed(self, values: Array) -> Array:
        return values

    def load(self, b: Builder, entries: Value) -> list[Value]:
        return [b.load(KIND, b.at(entries, 16 * i)) for i in range(4 * QUARTERS)]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        found: Value = ""
        for quarter in range(QUARTERS):
            first = quarter * QUARTER ^ (HALF if signed else 0)
            index = codes
            if first:
                index = b.op("xor", KIND, codes, splat(KIND, str(first - 256 * (first >= HALF))))
            rows = [(KIND, row) for row in table[4 * quarter : 4 * quarter + 4]]
            name = "llvm.aarch64.neon.tb{}4.v16i8".format("x" if found else "l")
            before = [(KIND, found)] if found else []
            found = b.call(name, KIND, *before, *rows, (KIND, index))
        return found
