"""The feature levels of RISC-V 64."""

from __future__ import annotations

from quantglow.backends.llvm.isa.portable import tuned
from quantglow.backends.llvm.isa.riscv.instructions import Scalars, Vectors
from quantglow.backends.llvm.isa.target import Family, Level, Settings

TRIPLE = "riscv64-unknown-linux-gnu"
FEATURES = "+m,+a,+f,+d,+c"


def refusal() -> str:
    """Why no level is loaded into a process."""
    return "code for RISC-V is only made for bundles"


LEVELS = (
    Level(
        "rv64gcv",
        "generic-rv64",
        f"{FEATURES},+v",
        Vectors(32, 16, unsigned_activations=False, has_fma=True),
        ("v",),
        refusal,
    ),
    Level(
        "rv64gc",
        "generic-rv64",
        FEATURES,
        Scalars(16, 8, unsigned_activations=False, has_fma=True),
        refusal=refusal,
    ),
)

FAMILY = Family(TRIPLE, LEVELS, tuned, settings=Settings(codemodel="medium", abi="lp64d"))
