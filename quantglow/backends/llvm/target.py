"""Targets are data: triple, processor, features, vector width and the dot product to use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from quantglow.backends.llvm.amx import tiles_allowed
from quantglow.backends.llvm.host import host
from quantglow.errors import BackendError


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

X86_TRIPLE = "x86_64-unknown-linux-gnu"

AMX = "amx-int8"
"""As ``avx512vnni``, with convolutions on tiles."""

_LEVELS = {
    AMX: ("x86-64-v4", "+avx512vnni,+amx-tile,+amx-int8", 64, Dot.VNNI, True),
    "avx512vnni": ("x86-64-v4", "+avx512vnni", 64, Dot.VNNI, True),
    "avxvnni": ("x86-64-v3", "+avxvnni", 32, Dot.VNNI, True),
    "avx2": ("x86-64-v3", "", 32, Dot.PAIRS, True),
    "x86-64": ("x86-64", "", 16, Dot.MADD, False),
}

LEVELS: tuple[str, ...] = tuple(_LEVELS)
"""The x86 feature levels, best first; each runs on every processor of a better one."""

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
_NEEDS = {
    AMX: (*_AVX512, "amx-tile", "amx-int8"),
    "avx512vnni": _AVX512,
    "avxvnni": ("avx2", "fma", "bmi2", "avxvnni"),
    "avx2": ("avx2", "fma", "bmi2"),
    "x86-64": ("sse2",),
}


@cache
def host_features() -> frozenset[str]:
    """Names of what this processor has."""
    listed = host().features.split(",")
    return frozenset(name[1:] for name in listed if name.startswith("+"))


def runs_here(name: str) -> bool:
    """Whether code of a level can run on this processor, in this process."""
    return set(_NEEDS[name]) <= host_features() and (name != AMX or tiles_allowed())


@cache
def resolve(name: str) -> Target:
    """The target called ``native`` or one of ``LEVELS``.  Raises ``BackendError``."""
    if name == "native":
        return _native()
    if name not in _LEVELS:
        raise BackendError(
            f"unknown target {name!r}; choose 'native' or one of {', '.join(LEVELS)}"
        )
    cpu, features, nbytes, dot, fma = _LEVELS[name]
    return Target(name, X86_TRIPLE, cpu, features, nbytes, dot, fma, tiles=name == AMX)


def _native() -> Target:
    this = host()
    level = next((name for name in LEVELS if runs_here(name)), None)
    if level is None or not this.triple.startswith("x86_64"):
        raise BackendError(f"no code generator for this processor ({this.triple})")
    _, _, nbytes, dot, fma = _LEVELS[level]
    return Target(
        name=level,
        triple=this.triple,
        cpu=this.cpu,
        features=this.features,
        vector_nbytes=nbytes,
        dot=dot,
        fma=fma,
        vbmi=nbytes == 64 and "avx512vbmi" in host_features(),
        tiles=level == AMX,
    )
