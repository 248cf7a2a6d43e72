"""The facts of an object, by its format."""

from __future__ import annotations

from collections.abc import Callable

from quantglow.backends.llvm.isa.target import ObjectFormat
from quantglow.bundle.objects import coff, elf, mach_o, wasm
from quantglow.bundle.objects.tables import ObjectFacts

READERS: dict[ObjectFormat, Callable[[bytes], ObjectFacts]] = {
    ObjectFormat.ELF: elf.read,
    ObjectFormat.MACH_O: mach_o.read,
    ObjectFormat.COFF: coff.read,
    ObjectFormat.WASM: wasm.read,
}


def object_facts(code: bytes, kind: ObjectFormat) -> ObjectFacts:
    """The facts of an object that LLVM wrote."""
    return READERS[kind](code)
