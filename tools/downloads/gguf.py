"""Tensors of a GGUF file, as float32; the format is specified in ggml's ``docs/gguf.md``."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Type of a value in the metadata -> its letter in ``struct``."""

TEXT, LIST = 8, 9
BLOCK = 32
"""Weights of a block of the quantized types."""

Q4_1 = np.dtype([("step", "<f2"), ("least", "<f2"), ("codes", "u1", BLOCK // 2)])
Q8_0 = np.dtype([("step", "<f2"), ("codes", "i1", BLOCK)])


def from_q4_1(blocks: Array) -> Array:
    """``step * code + least``; low halves of bytes are the first half of a block."""
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
    step, least = (blocks[name].astype(np.float32)[:, None] for name in ("step", "least"))
    return np.asarray(codes.astype(np.float32) * step + least)


def from_q8_0(blocks: Array) -> Array:
    return np.asarray(
        blocks["codes"].astype(np.float32) * blocks["step"].astype(np.float32)[:, None]
    )


KINDS: dict[int, tuple[np.dtype[Any], int, Callable[[Array], Array]]] = {
    0: (np.dtype("<f4"), 1, np.asarray),
    3: (Q4_1, BLOCK, from_q4_1),
    8: (Q8_0, BLOCK, from_q8_0),
}
"""Type of a tensor -> a block in the file, its weights, and what makes them float32."""


@dataclass(frozen=True)
class Tensor:
    """Place of a tensor in the file; its last axis is contiguous."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Gguf:
    """A file: ``metadata`` and tensors by name."""

    def __init__(self, path: Path) -> None:
        self.bytes = np.memmap(path, np.uint8, "r")
        self.position = 0
        magic, version, tensors, entries = self._unpack("4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path} is no GGUF file of version 3")
        self.metadata = dict(self._entry() for _ in range(entries))
        self.tensors = dict(self._tensor() for _ in range(tensors))
        alignment = int(self.metadata.get("general.alignment", BLOCK))
        self.start = -(-self.position // alignment) * alignment

    def __getitem__(self, name: str) -> Array:
        """A tensor as float32."""
        tensor = self.tensors[name]
        block, weights, convert = KINDS[tensor.kind]
        begin = self.start + tensor.offset
        nbytes = math.prod(tensor.shape) // weights * block.itemsize
        actual = convert(np.frombuffer(self.bytes[begin : begin + nbytes].tobytes(), block))
        return actual.reshape(tensor.shape)

    def _unpack(self, letters: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + letters)
        data = self.bytes[self.position : self.position + size].tobytes()
        actual = struct.unpack("<" + letters, data)
        self.position += size
        return actual

    def _text(self) -> str:
        (size,) = self._unpack("Q")
        return bytes(self._unpack(f"{size}s")[0]).decode()

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            inner, count = self._unpack("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._unpack(SCALARS[kind])[0]

    def _entry(self) -> tuple[str, Any]:
        name = self._text()
        return name, self._value(*self._unpack("I"))

    def _tensor(self) -> tuple[str, Tensor]:
        name = self._text()
        (rank,) = self._unpack("I")
        sizes = self._unpack(f"{rank}Q")
        kind, offset = self._unpack("IQ")
        return name, Tensor(tuple(reversed(sizes)), kind, offset)
