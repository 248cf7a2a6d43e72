"""Targets are data: triple, processor, features, vector width and the dot product to use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from quantglow.concise import Concise


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
class Core:
    """What the choice of register tiles asks of a processor's core, in cycles, and how it gets data
    from far away; by default Zen 5.

    ``issue``        instructions that it begins in a cycle, where that bounds inner loops
    ``latency``      from one dot product to the next of the same sum, and what waiting costs beyond
    ``weights``      for a step to read one vector of weights from the caches of the core
    ``far_weights``  the same from farther away
    ``crowded``      what a step loses where all registers but one hold something
    ``finish``       to finish and store one vector of results, where four, two, one are stored
                     together
    ``overlap``      of a tile's end that the products of the next tile hide
    ``large_pages``  whether arenas and constants are faster in pages of 2 MB
    ``even_prefetch``  whether weights from far away are asked for evenly, not as early as possible
    """

    issue: float = math.inf
    latency: float = 6.0
    weights: float = 0.01
    far_weights: float = 0.3
    crowded: float = 0.0
    finish: tuple[float, float, float] = (1.0, 1.1, 1.5)
    overlap: float = 5.0
    large_pages: bool = False
    even_prefetch: bool = False

    def finish_of(self, together: int) -> float:
        """Cycles for each of so many vectors."""
        return self.finish[{4: 0, 2: 1, 1: 2}[together]]


ICE_LAKE = Core(
    issue=2.8,
    latency=9.0,
    weights=0.4,
    far_weights=2.0,
    crowded=1.0,
    finish=(0.7, 1.5, 1.5),
    overlap=30.0,
    large_pages=True,
    even_prefetch=True,
)
"""Fitted on a virtual processor, whose core may serve another one at the same time: then five
instructions in a cycle are for both.  See ``benchmarks/RESULTS.md``."""

CORES = {
    "cascadelake": ICE_LAKE,
    "cooperlake": ICE_LAKE,
    "icelake-client": ICE_LAKE,
    "icelake-server": ICE_LAKE,
    "rocketlake": ICE_LAKE,
    "tigerlake": ICE_LAKE,
}
"""By LLVM's name of the processor: AVX-512 VNNI, and at most five instructions in a cycle."""


@dataclass(frozen=True, repr=False)
class Target(Concise):
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
    core: Core = Core()

    def __hash__(self) -> int:
        """Each call of a program looks for its run-time system by target."""
        return hash(self.name)

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
