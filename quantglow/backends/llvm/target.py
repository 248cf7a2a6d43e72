"""Targets are data: triple, processor, features, vector width and the dot product to use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Dot(StrEnum):
    """How four unsigned bytes times four signed bytes are added to an int32 lane."""

    VNNI = "vnni"
    """``vpdpbusd``: one instruction."""
    PAIRS = "pairs"
    """``pmaddubsw``, ``pmaddwd`` by ones, ``paddd`` where the weights prove that no sum of two
    products leaves 16 bits; elsewhere as ``MADD``."""
    MADD = "madd"
    """Exact on any SSE2: bytes widened to 16 bits, ``pmaddwd`` on even and odd bytes, ``paddd``."""


@dataclass(frozen=True)
class Host:
    """LLVM's words: triple, processor, and features as ``+avx2,-amx-tile``."""

    triple: str
    cpu: str
    features: str


@dataclass(frozen=True)
class Target:
    """A processor to generate code for."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_nbytes: int
    dot: Dot
    fma: bool
    vbmi: bool = False
    tiles: bool = False
    unsigned_activations: bool = True

    @property
    def f32_lanes(self) -> int:
        """float32 or int32 elements of a vector."""
        return self.vector_nbytes // 4

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.vector_nbytes == 64 else 16


SETTINGS = {"opt": 3, "reloc": "pic", "codemodel": "small"}
"""Of code generation: code may lie anywhere and reaches its constants directly."""
