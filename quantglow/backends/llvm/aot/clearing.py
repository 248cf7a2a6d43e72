"""The function that clears what kernels read before anyone writes it (``memory/unwritten.py``)."""

from __future__ import annotations

from quantglow.backends.llvm.aot.facts import array
from quantglow.backends.llvm.builder import I64, Builder
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.memory.arena_order import ALIGNMENT

BLOCK = f"<{ALIGNMENT // 4} x i32>"
BORDER_NBYTES = 4


def clearing(name: str, program: EmittedProgram) -> str:
    """``void NAME(ptr arena)``: zeros in the ranges of ``program.unwritten``, which has some."""
    borders = [str(border) for pair in program.unwritten for border in pair]
    section = program.target.object_format.section(f".rodata.{name}")
    table = f"@{name}.ranges = internal constant {array('i32', borders)}{section}"
    b = Builder()
    b.start_block("entry")
    with b.loop(0, len(borders), 2) as index:
        row = b.at(f"@{name}.ranges", b.mul(index, BORDER_NBYTES))
        first, end = (b.load("i32", b.at(row, n), BORDER_NBYTES) for n in (0, BORDER_NBYTES))
        first, end = (b.cast("zext", "i32", border, I64) for border in (first, end))
        with b.loop(first, end) as block:
            place = b.at("%arena", b.mul(block, ALIGNMENT))
            b.store(BLOCK, "zeroinitializer", place, ALIGNMENT)
    b.do("ret void")
    text = "\n".join(b.lines)
    return f"{table}\ndefine internal void @{name}(ptr %arena) nounwind {{\n{text}\n}}\n"
