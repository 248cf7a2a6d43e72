"""Vectors for LLVM that are registers of the processor."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.backends.llvm.builder import Builder, Value

LANES = 4
WORDS = "<4 x i32>"


def element(b: Builder, kind: str, values: Value, index: int) -> Value:
    """A lane as a scalar."""
    return b.emit(f"extractelement {kind} {values}, i32 {index}")


def gathered(b: Builder, kind: str, values: Sequence[Value]) -> Value:
    """Scalars as a vector."""
    made, scalar = "poison", kind[kind.index("x ") + 2 : -1]
    for index, value in enumerate(values):
        made = b.emit(f"insertelement {kind} {made}, {scalar} {value}, i32 {index}")
    return made
