"""The levels of Cortex-M.  None runs in this process: a bundle carries their code to a board."""

from __future__ import annotations

from dataclasses import replace

from quantglow.backends.llvm.isa.cortex_m.helium import Helium
from quantglow.backends.llvm.isa.cortex_m.instructions import SignalCortexM, SmallCortexM
from quantglow.backends.llvm.isa.target import Family, Host, Level, Settings, Target

ARCHITECTURES = ("thumbv",)

ARMV6 = "thumbv6m-unknown-none-eabi"
ARMV7E = "thumbv7em-unknown-none-eabihf"
ARMV8 = "thumbv8m.main-unknown-none-eabihf"
ARMV81 = "thumbv8.1m.main-unknown-none-eabihf"
"""Triples need four parts: of three, LLVM takes ``none`` for the vendor, and passes floats in
integer registers."""

_M0 = SmallCortexM(16, 16, unsigned_activations=False, index="i32")
_M4 = SignalCortexM(16, 16, unsigned_activations=False, has_fma=True, index="i32")
_M7 = replace(_M4, rounds_floats=True)
_M55 = Helium(16, 8, unsigned_activations=False, has_fma=True, rounds_floats=True, index="i32")

SINGLE = "-fp64"
"""Some Cortex-M7 have no double precision."""


def refusal() -> str:
    """The reason why code for microcontrollers does not run in a process of Python."""
    return "it is a microcontroller"


LEVELS = (
    Level("cortex-m55", "cortex-m55", "", _M55, (), refusal, ARMV81),
    Level("cortex-m33", "cortex-m33", "", _M7, (), refusal, ARMV8),
    Level("cortex-m7", "cortex-m7", SINGLE, _M7, (), refusal, ARMV7E),
    Level("cortex-m4", "cortex-m4", "", _M4, (), refusal, ARMV7E),
    Level("cortex-m0plus", "cortex-m0plus", "", _M0, (), refusal, ARMV6),
)


def tuned(level: Level, host: Host) -> Target:
    """A level as it is."""
    return FAMILY.target(level, host.triple)


FAMILY = Family(ARMV7E, LEVELS, tuned, ARCHITECTURES, settings=Settings(reloc="static"))
