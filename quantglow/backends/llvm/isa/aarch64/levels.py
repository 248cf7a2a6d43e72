"""The feature levels of AArch64, and the cores that are known."""

from __future__ import annotations

from dataclasses import replace

from quantglow.backends.llvm.isa.aarch64.detection import ARCHITECTURES, completed
from quantglow.backends.llvm.isa.aarch64.features import DETECTION
from quantglow.backends.llvm.isa.aarch64.instructions import AArch64, ByteProducts
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.isa.target import Family, Host, Level, Target

TRIPLE = "aarch64-unknown-linux-gnu"

_NEON = AArch64(16, 32, unsigned_activations=False, has_fma=True, rounds_floats=True)
_DOTPROD = replace(_NEON, products=ByteProducts.DOT)
_I8MM = replace(_NEON, products=ByteProducts.MIXED)

LEVELS = (
    Level("i8mm", "generic", "+dotprod,+i8mm", _I8MM, ("dotprod", "i8mm")),
    Level("dotprod", "generic", "+dotprod", _DOTPROD, ("dotprod",)),
    Level("neon", "generic", "", _NEON),
)
"""``neon`` runs on every processor of the architecture."""

CORE = Core(issue=4.0, latency=4.0, finish=(2.5, 3.0, 4.0))
"""A core that starts two dot products in a cycle: Neoverse N1, Cortex-A76."""


def tuned(level: Level, host: Host) -> Target:
    """A level for exactly this processor."""
    return Target(level.name, host.triple, host.cpu, host.features, level.isa, CORE)


FAMILY = Family(TRIPLE, LEVELS, tuned, ARCHITECTURES, completed, detection=DETECTION)
