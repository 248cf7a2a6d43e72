"""The meaning of AArch64's instructions in plain LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, Type, vector
from tests.matrix.plain_ir.text import narrowed, shuffled

PREFIX = "llvm.aarch64.neon."
BYTES, QUADS = "<16 x i8>", "<4 x i32>"


def products(extend: str, left: Sequence[int], right: Sequence[int], count: int) -> str:
    """Four sums of ``count`` products of bytes of ``%x`` and ``%w``, added to ``%s``."""
    wide = "<16 x i32>"
    text = f"  %xw = {extend} {BYTES} %x to {wide}\n  %ww = sext {BYTES} %w to {wide}\n"
    total = "%s"
    for k in range(count):
        text += shuffled(f"%x{k}", wide, "%xw", [i + k for i in left])
        text += shuffled(f"%w{k}", wide, "%ww", [i + k for i in right])
        text += f"  %p{k} = mul {QUADS} %x{k}, %w{k}\n  %s{k} = add {QUADS} {total}, %p{k}\n"
        total = f"%s{k}"
    head = f"({QUADS} %s, {BYTES} %x, {BYTES} %w)"
    return f"define internal {QUADS} @NAME{head} nounwind {{\n{text}  ret {QUADS} {total}\n}}\n"


def widened_product(lanes: int, element: Type, wide: Type) -> str:
    kind, result = vector(lanes, element), vector(lanes, wide)
    return f"""define internal {result} @NAME({kind} %x, {kind} %y) nounwind {{
  %a = sext {kind} %x to {result}
  %b = sext {kind} %y to {result}
  %p = mul {result} %a, %b
  ret {result} %p
}}
"""


def neighbors(operands: str, value: str, source: str, extend: str) -> str:
    """Sums of neighbouring elements of eight, as four int32."""
    text = f"define internal {QUADS} @NAME({operands}) nounwind {{\n{value}"
    for half in (0, 1):
        text += shuffled(f"%h{half}", source, "%v", range(half, 8, 2))
        part = source.replace("8", "4", 1)
        text += f"  %e{half} = {extend.format(part=part, half=half)}\n"
    return text + f"  %r = add {QUADS} %e0, %e1\n  ret {QUADS} %r\n}}\n"


def look_up(extended: bool) -> str:
    """``tbl4`` or ``tbx4``, byte by byte."""
    before = f"{BYTES} %before, " if extended else ""
    rows = ", ".join(f"{BYTES} %t{i}" for i in range(4))
    text = f"define internal {BYTES} @NAME({before}{rows}, {BYTES} %i) nounwind {{\n"
    two, four = ", ".join(f"i32 {i}" for i in range(32)), ", ".join(f"i32 {i}" for i in range(64))
    for name, a, b in (("%a", "%t0", "%t1"), ("%b", "%t2", "%t3")):
        text += f"  {name} = shufflevector {BYTES} {a}, {BYTES} {b}, <32 x i32> <{two}>\n"
    text += f"  %t = shufflevector <32 x i8> %a, <32 x i8> %b, <64 x i32> <{four}>\n"
    actual = "%before" if extended else "zeroinitializer"
    for k in range(16):
        text += f"""  %i{k} = extractelement {BYTES} %i, i32 {k}
  %in{k} = icmp ult i8 %i{k}, 64
  %m{k} = and i8 %i{k}, 63
  %e{k} = extractelement <64 x i8> %t, i8 %m{k}
  %o{k} = extractelement {BYTES} {actual}, i32 {k}
  %n{k} = select i1 %in{k}, i8 %e{k}, i8 %o{k}
  %r{k} = insertelement {BYTES} {f"%r{k - 1}" if k else "poison"}, i8 %n{k}, i32 {k}
"""
    return text + f"  ret {BYTES} %r15\n}}\n"


def rounded(lanes: int) -> str:
    kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
    suffix = f"v{lanes}f32" if lanes > 1 else "f32"
    result = f"v{lanes}i32" if lanes > 1 else "i32"
    return f"""define internal {ints} @NAME({kind} %x) nounwind {{
  %r = call {kind} @llvm.roundeven.{suffix}({kind} %x)
  %i = call {ints} @llvm.fptosi.sat.{result}.{suffix}({kind} %r)
  ret {ints} %i
}}
"""


EACH, BLOCKS = (0, 4, 8, 12), ((0, 0, 8, 8), (0, 8, 0, 8))
ADDP = "  %v = shufflevector {0} %x, {0} %y, <8 x i32> <{1}>\n".format(
    QUADS, ", ".join(f"i32 {i}" for i in range(8))
)
MEANINGS = {
    "sdot.v4i32.v16i8": products("sext", EACH, EACH, 4),
    "usdot.v4i32.v16i8": products("zext", EACH, EACH, 4),
    "smmla.v4i32.v16i8": products("sext", *BLOCKS, 8),
    "smull.v8i16": widened_product(8, I8, I16),
    "smull.v4i32": widened_product(4, I16, I32),
    "sqxtn.v4i16": narrowed(4, I16, I32, -(2**15), 2**15 - 1),
    "sqxtn.v8i8": narrowed(8, I8, I16, -128, 127),
    "sqxtun.v8i8": narrowed(8, I8, I16, 0, 255),
    "addp.v4i32": neighbors(
        f"{QUADS} %x, {QUADS} %y", ADDP, "<8 x i32>", "bitcast {part} %h{half} to " + QUADS
    ),
    "saddlp.v4i32.v8i16": neighbors(
        "<8 x i16> %v", "", "<8 x i16>", "sext {part} %h{half} to " + QUADS
    ),
    "tbl4.v16i8": look_up(False),
    "tbx4.v16i8": look_up(True),
    "fcvtns.i32.f32": rounded(1),
    "fcvtns.v2i32.v2f32": rounded(2),
    "fcvtns.v4i32.v4f32": rounded(4),
}
"""Functions called NAME, by the intrinsic below ``llvm.aarch64.neon``."""
