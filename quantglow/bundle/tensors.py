"""Inputs and outputs of a bundle, as C sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quantglow.backends.llvm.aot.facts import per_tensor
from quantglow.backends.llvm.emitted import EmittedProgram
from quantglow.instr.program import View
from quantglow.types import DType

C_TYPES = {
    DType.F32: "float",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.I16: "int16_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    DType.BOOL: "uint8_t",
}


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    name        in the model
    macro       prefix of its macros
    shape       elements lie in row-major order
    scale       ``real = scale * (q - zero_point)``; None for values that are not quantized
    """

    name: str
    macro: str
    c_type: str
    shape: tuple[int, ...]
    nbytes: int
    scale: float | None
    zero_point: int | None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """The facts in types that ``json`` writes."""
        return {
            "name": self.name,
            "c_type": self.c_type,
            "shape": list(self.shape),
            "nbytes": self.nbytes,
            "scale": self.scale,
            "zero_point": self.zero_point,
        }


def inputs_of(name: str, program: EmittedProgram) -> tuple[Tensor, ...]:
    """The inputs of a bundle called ``name``, in their order."""
    return tuple(_tensors(f"{name}_INPUT", program.inputs))


def outputs_of(name: str, program: EmittedProgram) -> tuple[Tensor, ...]:
    """The outputs, in their order."""
    return tuple(_tensors(f"{name}_OUTPUT", program.outputs))


def _tensors(prefix: str, ports: Iterable[tuple[str, View]]) -> Iterable[Tensor]:
    for index, (name, view) in enumerate(ports):
        kind, quant = view.type, per_tensor(view)
        scale, zero_point = (quant.scale, quant.zero_point) if quant else (None, None)
        macro = f"{prefix}{index}".upper()
        c_type = C_TYPES[kind.dtype]
        yield Tensor(name, macro, c_type, kind.shape, kind.nbytes, scale, zero_point)


def is_identifier(name: str) -> bool:
    """Whether symbols of C may begin with a name."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None
