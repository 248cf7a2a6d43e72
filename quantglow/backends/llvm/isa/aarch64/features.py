"""Features of AArch64, from Linux: processes may not read the registers that have them."""

from __future__ import annotations

from quantglow.backends.llvm.isa.aarch64.detection import LINUX
from quantglow.backends.llvm.isa.features import Detection

DETECTION = Detection(
    "declare i64 @getauxval(i64)\n",
    """
  %wide16 = call i64 @getauxval(i64 16)
  %wide26 = call i64 @getauxval(i64 26)
  %entry16 = trunc i64 %wide16 to i32
  %entry26 = trunc i64 %wide26 to i32
""",
    {name: ((f"entry{entry}", 1 << bit),) for name, (entry, bit) in LINUX.items()},
)
