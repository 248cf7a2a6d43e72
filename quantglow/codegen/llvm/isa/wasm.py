"""WebAssembly with ``simd128``: its instruction set and its only level.

Engines map vectors to processors of 16 registers or more.
"""

from __future__ import annotations

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.portable import Portable, tune
from quantglow.codegen.llvm.isa.target import Level, Settings, TargetFamily
from quantglow.codegen.llvm.values import (
    FLOAT,
    I8,
    I16,
    I32,
    Operand,
    Type,
    Value,
    f32,
    splat,
    vector,
)

LEAST = -(2.0**31)

TRIPLE = "wasm32-unknown-unknown"
FEATURES = "+simd128,+nontrapping-fptoint,+sign-ext,+bulk-memory,+bulk-memory-opt"
"""Features of all engines that have vectors."""


class Wasm(Portable):
    """Vectors of 16 bytes."""

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        """``i32x4.dot_i16x8_s``"""
        words = vector(8, I16)
        return b.call("llvm.wasm.dot", vector(4, I32), (words, x), (words, y))

    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        return self._narrowed(b, "signed.v8i16.v4i32", (vector(4, I32), vector(8, I16)), (x, y))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        how = "signed" if signed else "unsigned"
        return self._narrowed(b, f"{how}.v16i8.v8i16", (vector(8, I16), vector(16, I8)), (x, y))

    def _narrowed(
        self, b: Builder, name: str, kinds: tuple[Type, Type], values: tuple[Value, Value]
    ) -> Value:
        wide, narrow = kinds
        x, y = ((wide, value) for value in values)
        return b.call(f"llvm.wasm.narrow.{name}", narrow, x, y)

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """The greater of the value and the least integer, which is also that of NaN."""
        kind = vector(lanes, FLOAT)
        least = splat(kind, f32(LEAST))
        number = b.select(kind, b.compare("olt", kind, least, value), value, least)
        return self.round_number(b, lanes, number)

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``f32x4.nearest``, then ``i32x4.trunc_sat_f32x4_s``."""
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        source, result = (x if lanes == 1 else f"v{lanes}{x}" for x in ("f32", I32))
        nearest = b.call(f"llvm.rint.{source}", kind, (kind, value))
        return b.call(f"llvm.fptosi.sat.{result}.{source}", ints, (kind, nearest))


def refusal() -> str:
    """Why the level is not loaded into a process."""
    return "code for WebAssembly is only made for bundles"


WASM32 = Level(
    "wasm32",
    "generic",
    FEATURES,
    Wasm(16, 16, unsigned_activations=False, rounds_floats=True),
    refusal=refusal,
)

FAMILY = TargetFamily(TRIPLE, (WASM32,), tune, settings=Settings(reloc="static"))
