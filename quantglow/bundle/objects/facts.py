"""The facts of an object, by its format."""

from __future__ import annotations

from collections.abc import Callable

from quantglow.backends.llvm.isa.target import ObjectFormat
from quantglow.bundle.objects.coff import read_coff
from quantglow.bundle.objects.elf import read_elf
from quantglow.bundle.objects.mach_o import read_mach_o
from quantglow.bundle.objects.tables import ObjectFacts
from quantglow.bundle.objects.wasm import read_wasm

READERS: dict[ObjectFormat, Callable[[bytes], ObjectFacts]] = {
    ObjectFormat.ELF: read_elf,
    ObjectFormat.MACH_O: read_mach_o,
    ObjectFormat.COFF: read_coff,
    ObjectFormat.WASM: read_wasm,
}


def object_facts(code: bytes, kind: ObjectFormat) -> ObjectFacts:
    """The facts of an object that LLVM wrote."""
    return READERS[kind](code)
