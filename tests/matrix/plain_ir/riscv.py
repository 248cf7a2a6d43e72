"""The meaning of RISC-V's conversions in plain LLVM IR; all else of its kernels is plain."""

from __future__ import annotations

from quantglow.codegen.llvm.values import FLOAT, I1, I32, splat, vector

PREFIX = "llvm.lrint."
GREATEST = 2**31 - 1


def converted(lanes: int) -> str:
    """``vfcvt.x.f.v``: saturates, and makes the greatest integer of NaN."""
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    number, result = (f"v{lanes}{x}" for x in ("f32", "i32"))
    bits = vector(lanes, I1)
    return f"""define internal {ints} @NAME({kind} %x) nounwind {{
  %r = call {kind} @llvm.roundeven.{number}({kind} %x)
  %i = call {ints} @llvm.fptosi.sat.{result}.{number}({kind} %r)
  %nan = fcmp uno {kind} %x, %x
  %y = select {bits} %nan, {ints} {splat(ints, str(GREATEST))}, {ints} %i
  ret {ints} %y
}}
"""


MEANINGS = {f"v{lanes}i32.v{lanes}f32": converted(lanes) for lanes in (2, 4, 8, 16, 32, 64)}
"""Functions called NAME, by the types of ``llvm.lrint``."""
