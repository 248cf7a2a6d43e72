"""The stack that functions take, read from what LLVM reports while it generates their code.

``"warn-stack-size"`` reports the bytes of a frame without what scales: processors with vector
registers of several widths (RISC-V) spill whole registers, whose bytes no compiler knows.  The
layout of a frame, a remark, lists these spills in units of 64 bits for each 64 bits of a register.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

REMARKS = "-pass-remarks-analysis=stack-frame-layout"
"""The option by which LLVM reports layouts."""

FRAME = re.compile(r"stack frame size \((\d+)\) exceeds limit \(0\) in function '([^']+)'")
LAYOUT = re.compile(r"^Function: (\S+)\n((?:Offset: .*\n)*)", re.MULTILINE)
SLOT = re.compile(
    r"^Offset: \[SP([-+]\d+)?.*\], Type: \w+, Align: (\d+), Size: (vscale x )?", re.MULTILINE
)
UNIT_NBYTES = 8
"""Bytes of a vector register where ``vscale`` is 1."""

CALL_ALIGN = 16
"""Alignment of the stack where a function begins; more costs the difference at most."""

MOST_VLEN = 65_536
"""Maximum number of bits of a vector register, by RISC-V's specification of vectors."""


@dataclass(frozen=True)
class Stack:
    """``nbytes`` of stack, and room for so many vector ``registers`` whose width only the processor
    knows."""

    nbytes: int = 0
    registers: int = 0

    def __add__(self, other: Stack) -> Stack:
        return Stack(self.nbytes + other.nbytes, self.registers + other.registers)

    @staticmethod
    def most(stacks: Iterable[Stack]) -> Stack:
        """Enough for any of these."""
        listed = [Stack(), *stacks]
        return Stack(max(s.nbytes for s in listed), max(s.registers for s in listed))

    def at(self, vlen: int) -> int:
        """Bytes where a vector register has ``vlen`` bits."""
        return self.nbytes + self.registers * (vlen // 8)

    @property
    def most_nbytes(self) -> int:
        """Bytes on every processor."""
        return self.at(MOST_VLEN)


def frames_of(report: str) -> dict[str, Stack]:
    """The frame of each function that takes any stack."""
    fixed = {name: int(nbytes) for nbytes, name in FRAME.findall(report)}
    stacks = {name: Stack(nbytes) for name, nbytes in fixed.items()}
    for name, slots in LAYOUT.findall(report):
        stacks[name] = stacks.get(name, Stack()) + more(slots)
    return {name: stack for name, stack in stacks.items() if stack != Stack()}


def more(slots: str) -> Stack:
    """The vector registers of a layout, and the bytes that align it."""
    align, registers = CALL_ALIGN, 0
    for offset, alignment, scales in SLOT.findall(slots):
        if scales:
            registers = max(registers, -(int(offset or 0) // UNIT_NBYTES))
        else:
            align = max(align, int(alignment))
    return Stack(align - CALL_ALIGN, registers)
