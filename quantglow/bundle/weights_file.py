"""Weights as C code, for toolchains that place constants themselves."""

from __future__ import annotations

from collections.abc import Iterator

from quantglow.backends.llvm.aot.weights import Weights
from quantglow.memory.arena_order import ALIGNMENT

ROW = 16
"""Bytes in a line."""


def c_weights(name: str, weights: Weights) -> str:
    """The text of ``NAME_weights.c``."""
    data = b"".join(weights.pieces())
    return "\n".join(
        [
            f"/* The constants of {name}; they are never written. */",
            f'#include "{name}.h"',
            "",
            f"extern const unsigned char {name}_weights[{len(data)}];",
            f"QUANTGLOW_ALIGN({ALIGNMENT}) const unsigned char {name}_weights[{len(data)}] = {{",
            *rows(data),
            "};",
            "",
        ]
    )


def rows(data: bytes) -> Iterator[str]:
    """Lines of numbers."""
    for start in range(0, len(data), ROW):
        yield ",".join(map(str, data[start : start + ROW])) + ","
