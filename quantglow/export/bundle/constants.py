"""Constants of an object: the facts of its program, and its weights as one block.

The layouts are those of the C structs in ``quantglow/export/bundle/header.py``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

import numpy as np

from quantglow.codegen.llvm.emitted import EmittedProgram
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.ir.program.program import View
from quantglow.ir.types import DType, QuantParams
from quantglow.support.arrays import Array
from quantglow.support.classes import Concise, cached_property
from quantglow.version import __version__

ABI = 1
"""Number of the layout of facts, and of the arguments of a run."""

ELEMENT_TYPES = {
    DType.F32: 1,
    DType.U8: 2,
    DType.I8: 3,
    DType.I16: 5,
    DType.I32: 6,
    DType.I64: 7,
    DType.BOOL: 9,
}
"""ONNX's numbers of element types."""

TENSOR = "{ ptr, ptr, i64, float, i32, i32, i32 }"
"""Name, shape, bytes, scale, zero point, element type, rank."""


@dataclass(eq=False, repr=False)
class Facts(Concise):
    """The facts of a program called ``name``, made from the model with the hash ``source_hash``."""

    name: str
    source_hash: str
    program: EmittedProgram
    arena_nbytes: int
    weights_nbytes: int
    kernels: Sequence[str]
    definitions: list[str] = field(default_factory=list)

    @property
    def symbol(self) -> str:
        """The name of the constant."""
        return f"{self.name}_facts"

    def lines(self) -> Iterator[str]:
        """Definitions in LLVM IR."""
        program = self.program
        words = self.name, program.target.name, __version__, self.source_hash
        kernels = [self._text(label) for label in self.kernels]
        values = [
            *(f"ptr {self._text(word)}" for word in words),
            f"ptr {self._table(TENSOR, [self._tensor(*port) for port in program.inputs])}",
            f"ptr {self._table(TENSOR, [self._tensor(*port) for port in program.outputs])}",
            f"ptr {self._table('ptr', kernels)}",
            *(f"i64 {n}" for n in (self.arena_nbytes, ALIGNMENT, self.weights_nbytes)),
            *(f"i32 {n}" for n in (ABI, len(program.inputs), len(program.outputs), len(kernels))),
        ]
        kinds = ", ".join(value.split()[0] for value in values)
        yield from self.definitions
        value = f"{{ {kinds} }} {{ {', '.join(values)} }}"
        yield f"@{self.symbol} = constant {value}{self._with_pointers}"

    def _tensor(self, name: str, view: View) -> str:
        kind, params = view.type, per_tensor(view)
        shape = self._constant(array("i64", [str(size) for size in kind.shape]), self._plain)
        scale, zero_point = (params.scale, params.zero_point) if params else (0.0, 0)
        (bits,) = struct.unpack("<Q", struct.pack("<d", scale))
        numbers = zero_point, ELEMENT_TYPES[kind.dtype], kind.rank
        ends = f"i64 {kind.nbytes}, float 0x{bits:016X}", *(f"i32 {n}" for n in numbers)
        return f"{{ ptr {self._text(name)}, ptr {shape}, {', '.join(ends)} }}"

    def _table(self, kind: str, elements: Sequence[str]) -> str:
        return self._constant(array(kind, elements), self._with_pointers)

    def _text(self, text: str) -> str:
        octets = [*text.encode(), 0]
        value = "".join(f"\\{octet:02X}" for octet in octets)
        return self._constant(f'[{len(octets)} x i8] c"{value}"', self._plain)

    def _constant(self, value: str, section: str) -> str:
        """The name of a new constant."""
        symbol = f"@{self.symbol}.{len(self.definitions)}"
        self.definitions.append(f"{symbol} = internal constant {value}{section}")
        return symbol

    @property
    def _plain(self) -> str:
        return self.program.target.object_format.section(f".rodata.{self.symbol}.plain")

    @property
    def _with_pointers(self) -> str:
        """The section of addresses, which a loader writes if code may lie anywhere."""
        target = self.program.target
        head = ".data.rel.ro" if target.settings.reloc == "pic" else ".rodata"
        return target.object_format.section(f"{head}.{self.symbol}")


def array(kind: str, elements: Sequence[str]) -> str:
    """An array as a constant of LLVM."""
    return f"[{len(elements)} x {kind}] [{', '.join(f'{kind} {e}' for e in elements)}]"


def per_tensor(view: View) -> QuantParams | None:
    """The quantization of a tensor with one scale; None for others."""
    quant = view.type.quant
    return None if quant is None or quant.axis is not None else quant


class Placement(StrEnum):
    """Places of the constants.

    ``OBJECT``  in the object
    ``C``       in an array that C code defines
    ``BIN``     in memory that the caller fills from a file
    """

    OBJECT = "object"
    C = "c"
    BIN = "bin"


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Concise):
    """Constants one after the other, each aligned, and ``slack_nbytes`` zeros that kernels may read
    after the last one.

    ``positions``: for each constant of a program, which of ``constants`` it is.
    """

    constants: tuple[Array, ...]
    placement: Placement
    slack_nbytes: int
    positions: tuple[int, ...]

    @cached_property
    def _ends(self) -> list[int]:
        """Offset of each constant, then that of the end, in bytes."""
        return list(accumulate((_align(c.nbytes) for c in self.constants), initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self._ends[-1] + self.slack_nbytes

    def offset_bytes(self, index: int) -> int:
        """Offset of a constant of the program."""
        return self._ends[self.positions[index]]

    @cached_property
    def marker(self) -> bytes:
        """Bytes in an object that stand at the beginning of the block until it is filled."""
        digest = hashlib.sha256(b"quantglow: the block of weights begins here")
        return digest.digest()[: self.slack_nbytes]

    def pieces(self) -> Iterator[bytes]:
        """The block, piece by piece."""
        for constant in self.constants:
            data = np.ascontiguousarray(constant).tobytes()
            yield data
            yield bytes(_align(len(data)) - len(data))
        yield bytes(self.slack_nbytes)


def weight_blocks(programs: Sequence[EmittedProgram], placement: Placement) -> list[Weights]:
    """The weights of each program: one block for all, which has equal constants once."""
    slack_nbytes = max(program.target.isa.slack_nbytes for program in programs)
    numbers: dict[bytes, int] = {}
    constants: list[Array] = []
    positions: list[tuple[int, ...]] = []
    for program in programs:
        blocks = []
        for constant in program.constants:
            key = hashlib.sha256(np.ascontiguousarray(constant).tobytes()).digest()
            if numbers.setdefault(key, len(constants)) == len(constants):
                constants.append(constant)
            blocks.append(numbers[key])
        positions.append(tuple(blocks))
    return [Weights(tuple(constants), placement, slack_nbytes, blocks) for blocks in positions]


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
