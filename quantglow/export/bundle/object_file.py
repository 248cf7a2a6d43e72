"""Object files: IR text compiled in a child process, and the stack of each function.

LLVM ends the process where it has no instruction for an operation, hence the child.

``"warn-stack-size"`` reports the bytes of a frame without what scales: processors with vector
registers of several widths (RISC-V) spill whole registers, whose bytes no compiler knows.  The
layout of a frame, a remark, lists these spills in units of 64 bits for each 64 bits of a register.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np

from quantglow.codegen.llvm.isa.target import Settings, Target
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise
from quantglow.support.errors import BackendError
from quantglow.support.processes.isolation import IsolationError, call_isolated

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

PATIENCE_SECONDS = 1200.0
"""Longest time that LLVM may take for one object."""

DEFINITION = re.compile(r"^(define .*?\) nounwind)", re.MULTILINE)
REPORTED = 'noredzone "warn-stack-size"="0"'
"""Functions with these attributes make LLVM report their bytes of stack, all of them: no function
uses what lies below its frame."""
SMALL = "optsize"
"""The attribute of functions whose code counts."""

SHARED = "linkonce_odr"
"""The linkage of constants that several texts define."""


@dataclass(frozen=True)
class StackUse:
    """``nbytes`` of stack, and room for so many vector ``registers`` whose width only the processor
    knows."""

    nbytes: int = 0
    registers: int = 0

    def __add__(self, other: StackUse) -> StackUse:
        return StackUse(self.nbytes + other.nbytes, self.registers + other.registers)

    @staticmethod
    def most(stacks: Iterable[StackUse]) -> StackUse:
        """Enough for any of these."""
        listed = [StackUse(), *stacks]
        return StackUse(max(s.nbytes for s in listed), max(s.registers for s in listed))

    def at(self, vlen: int) -> int:
        """Bytes where a vector register has ``vlen`` bits."""
        return self.nbytes + self.registers * (vlen // 8)

    @property
    def most_nbytes(self) -> int:
        """Bytes on every processor."""
        return self.at(MOST_VLEN)


def parse_frames(report: str) -> dict[str, StackUse]:
    """The frame of each function that takes any stack."""
    fixed = {name: int(nbytes) for nbytes, name in FRAME.findall(report)}
    stacks = {name: StackUse(nbytes) for name, nbytes in fixed.items()}
    for name, slots in LAYOUT.findall(report):
        stacks[name] = stacks.get(name, StackUse()) + _more(slots)
    return {name: stack for name, stack in stacks.items() if stack != StackUse()}


def _more(slots: str) -> StackUse:
    """The vector registers of a layout, and the bytes that align it."""
    align, registers = CALL_ALIGN, 0
    for offset, alignment, scales in SLOT.findall(slots):
        if scales:
            registers = max(registers, -(int(offset or 0) // UNIT_NBYTES))
        else:
            align = max(align, int(alignment))
    return StackUse(align - CALL_ALIGN, registers)


@dataclass(frozen=True, eq=False, repr=False)
class ObjectFile(Concise):
    """An object: its bytes, and the stack that each of its functions takes."""

    code: bytes
    frames: Mapping[str, StackUse]


def object_file(target: Target, texts: Sequence[str], public: Sequence[str]) -> ObjectFile:
    """The object of a target with all functions of some modules; ``public``: the functions that
    other objects see.  Raises ``BackendError``.
    """
    attributes = f"{SMALL} {REPORTED}" if target.saves_code else REPORTED
    texts = [target.isa.legal(text) for text in texts]
    texts += filter(None, [target.isa.routines(texts)])
    marked = (DEFINITION.sub(rf"\1 {attributes}", text) for text in texts)
    arrays = [np.frombuffer(text.encode(), np.uint8) for text in marked]
    facts = {"triple": target.triple, "cpu": target.cpu, "features": target.features}
    more = {"settings": asdict(target.settings), "public": list(public)}
    place = f"{__name__}:compile_here"
    try:
        code, frames = call_isolated(place, arrays, facts | more, seconds=PATIENCE_SECONDS)
    except IsolationError as error:
        raise BackendError(f"LLVM made no object for {target.name}: {error}") from error
    stacks = json.loads(frames.tobytes())
    return ObjectFile(
        code.tobytes(), {name: StackUse(*numbers) for name, numbers in stacks.items()}
    )


def compile_here(
    texts: Sequence[Array],
    triple: str,
    cpu: str,
    features: str,
    settings: Mapping[str, str],
    public: Sequence[str],
) -> list[Array]:
    """The object, and its frames as JSON; runs in the child process."""
    from quantglow.codegen.llvm import compiler

    compiler.set_option(REMARKS)
    compiler.initialize_all()
    generator = compiler.code_generator(triple, cpu, features, Settings(**settings))
    module = compiler.join_modules([text.tobytes().decode() for text in texts])
    module.triple, module.data_layout = triple, str(generator.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name not in public:
            function.linkage = "internal"
    for constant in module.global_variables:
        if constant.linkage.name == SHARED:
            constant.linkage = "internal"
    before = os.fstat(2).st_size  # the parent gave a file
    code = generator.emit_object(module)
    said = os.pread(2, os.fstat(2).st_size - before, before)
    frames = {name: astuple(stack) for name, stack in parse_frames(said.decode()).items()}
    return [np.frombuffer(code, np.uint8), np.frombuffer(json.dumps(frames).encode(), np.uint8)]
