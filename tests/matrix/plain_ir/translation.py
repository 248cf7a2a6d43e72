"""Targets whose kernels run on any machine, in plain LLVM IR.

The text of a kernel stays as it is, but for the intrinsics, which become functions in plain LLVM
IR.  So code generation for a level is checked at full speed; ``tests/cross`` checks what LLVM makes
of the intrinsics.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache

from quantglow.codegen.llvm.cache import ObjectCache
from quantglow.codegen.llvm.isa.aarch64.instructions import FAMILY as AARCH64
from quantglow.codegen.llvm.isa.cortex_m.instructions import FAMILY as CORTEX_M
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.codegen.llvm.isa.riscv import FAMILY as RISCV
from quantglow.codegen.llvm.isa.target import Target, TargetFamily
from quantglow.codegen.llvm.isa.wasm import FAMILY as WASM
from quantglow.codegen.llvm.targets import level_target, resolve
from quantglow.runtime.jit import library
from tests.matrix.plain_ir import aarch64, cortex_m, riscv, wasm

SUFFIX = " in plain IR"
THIS, PORTABLE = resolve("native"), resolve("portable")
"""Targets of this machine, before ``as_other`` replaces them."""
FAMILIES: dict[str, TargetFamily] = {
    "arm": AARCH64,
    "cortex-m": CORTEX_M,
    "riscv": RISCV,
    "wasm": WASM,
}
"""Instruction sets whose meaning is written down."""
MEANINGS = {
    f"{module.PREFIX}{name}": text
    for module in (aarch64, cortex_m, riscv, wasm)
    for name, text in module.MEANINGS.items()
}
"""Functions called NAME, by intrinsic."""
DECLARED = re.compile(r"declare [^@\n]*@([\w.]+)\([^)\n]*\)\n")


def translated(text: str) -> str:
    """A kernel without intrinsics of a processor."""
    for declaration in DECLARED.finditer(text):
        if (name := declaration[1]) in MEANINGS:
            ours = name.replace("llvm.", "plain.")
            meaning = MEANINGS[name].replace("NAME", ours)
            text = text.replace(declaration[0], meaning).replace(f"@{name}(", f"@{ours}(")
    return text.replace('"=w,0"', '"=x,0"')


class TranslatedLibrary(library.KernelLibrary):
    """Compiles what ``translated`` makes of texts."""

    def compile(self, text: str) -> bytes:
        return super().compile(translated(text))


@cache
def loaded_here(isa: type[InstructionSet]) -> type[InstructionSet]:
    """An instruction set whose code is loaded on this machine."""
    waiting, linking = PORTABLE.isa.waiting, THIS.isa.linking
    ours = {"waiting": property(lambda _: waiting), "linking": property(lambda _: linking)}
    return type(f"{isa.__name__}Here", (isa,), ours)


def plain(level: str) -> Target:
    """A level of another processor whose kernels run on this machine."""
    there = level_target(level)
    values = {f.name: getattr(there.isa, f.name) for f in fields(there.isa)}
    isa = loaded_here(type(there.isa))(**values)
    built = replace(THIS, name=level + SUFFIX, isa=isa, core=there.core)
    if built not in library.libraries:
        library.libraries[built] = TranslatedLibrary(built, ObjectCache(None))
    return built
