"""The level of WebAssembly."""

from __future__ import annotations

from quantglow.backends.llvm.isa.portable import tuned
from quantglow.backends.llvm.isa.target import Family, Level, Settings
from quantglow.backends.llvm.isa.wasm.instructions import Wasm

TRIPLE = "wasm32-unknown-unknown"
FEATURES = "+simd128,+nontrapping-fptoint,+sign-ext,+bulk-memory,+bulk-memory-opt"
"""Features of all engines that have vectors."""


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

FAMILY = Family(TRIPLE, (WASM32,), tuned, settings=Settings(reloc="static"))
