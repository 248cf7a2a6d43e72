"""The feature levels of RISC-V 64."""

from __future__ import annotations

from quantglow.backends.llvm.isa.features import Detection
from quantglow.backends.llvm.isa.portable import tuned
from quantglow.backends.llvm.isa.riscv.instructions import Scalars, Vectors
from quantglow.backends.llvm.isa.target import Family, Level, Settings

TRIPLE = "riscv64-unknown-linux-gnu"
FEATURES = "+m,+a,+f,+d,+c"
CORE = "rocket-rv64"
"""The core for which instructions are ordered: loops keep their sums in registers, which LLVM's
generic core makes spill (a third of the instructions of MNIST)."""


def refusal() -> str:
    """Why no level is loaded into a process."""
    return "code for RISC-V is only made for bundles"


LEVELS = (
    Level(
        "rv64gcv",
        CORE,
        f"{FEATURES},+v",
        Vectors(64, 8, unsigned_activations=False, has_fma=True),
        ("v",),
        refusal,
    ),
    Level(
        "rv64gc",
        CORE,
        FEATURES,
        Scalars(16, 6, unsigned_activations=False, has_fma=True, limits_floats=True),
        refusal=refusal,
    ),
)

DETECTION = Detection(
    "declare i64 @getauxval(i64)\n",
    """
  %wide16 = call i64 @getauxval(i64 16)
  %entry16 = trunc i64 %wide16 to i32
""",
    {"v": (("entry16", 1 << (ord("V") - ord("A"))),)},
)
"""Linux has a bit for each extension whose name is a letter."""

FAMILY = Family(
    TRIPLE,
    LEVELS,
    tuned,
    settings=Settings(codemodel="medium", abi="lp64d"),
    detection=DETECTION,
)
