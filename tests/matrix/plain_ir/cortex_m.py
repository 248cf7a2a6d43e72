"""The meaning of Cortex-M's instructions in plain LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from quantglow.codegen.llvm.values import I8, I32, vector

PREFIX = "llvm.arm."


def mask(order: Sequence[int]) -> str:
    """The lanes of a shuffle."""
    return f"<{', '.join(f'i32 {lane}' for lane in order)}>"


def halves(name: str) -> str:
    """The lower and the upper half of a word as int32."""
    return f"""  %{name}.up = shl i32 %{name}, 16
  %{name}.low = ashr i32 %{name}.up, 16
  %{name}.high = ashr i32 %{name}, 16
"""


SMLAD = f"""define internal i32 @NAME(i32 %x, i32 %y, i32 %s) nounwind {{
{halves("x")}{halves("y")}  %low = mul i32 %x.low, %y.low
  %high = mul i32 %x.high, %y.high
  %both = add i32 %low, %high
  %r = add i32 %s, %both
  ret i32 %r
}}
"""

SXTB16 = """define internal i32 @NAME(i32 %x) nounwind {
  %b = bitcast i32 %x to <4 x i8>
  %even = shufflevector <4 x i8> %b, <4 x i8> poison, <2 x i32> <i32 0, i32 2>
  %wide = sext <2 x i8> %even to <2 x i16>
  %r = bitcast <2 x i16> %wide to i32
  ret i32 %r
}
"""

VCVTR = """define internal float @NAME(float %x) nounwind {
  %r = call float @llvm.roundeven.f32(float %x)
  %i = call i32 @llvm.fptosi.sat.i32.f32(float %r)
  %f = bitcast i32 %i to float
  ret float %f
}
"""


def one_product(half: str) -> str:
    return f"""define internal i32 @NAME(i32 %x, i32 %y, i32 %s) nounwind {{
{halves("x")}{halves("y")}  %p = mul i32 %x.{half}, %y.{half}
  %r = add i32 %s, %p
  ret i32 %r
}}
"""


VMLAVA = """define internal i32 @NAME(i32, i32, i32, i32 %s, <16 x i8> %x, <16 x i8> %y) nounwind {
  %a = sext <16 x i8> %x to <16 x i32>
  %b = sext <16 x i8> %y to <16 x i32>
  %p = mul <16 x i32> %a, %b
  %t = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %p)
  %r = add i32 %s, %t
  ret i32 %r
}
"""

VCVTN = """define internal <4 x i32> @NAME(i32, <4 x float> %x) nounwind {
  %r = call <4 x float> @llvm.roundeven.v4f32(<4 x float> %x)
  %i = call <4 x i32> @llvm.fptosi.sat.v4i32.v4f32(<4 x float> %r)
  ret <4 x i32> %i
}
"""

IN_TURN = [16 * vector + i for i in range(16) for vector in range(4)]
BYTES, WORDS, LONG = vector(16, I8), vector(4, I32), vector(32, I8)
VST4 = f"""define internal void @NAME(ptr %p,
    {BYTES} %a, {BYTES} %b, {BYTES} %c, {BYTES} %d, i32) nounwind {{
  %ab = shufflevector {BYTES} %a, {BYTES} %b, <32 x i32> {mask(range(32))}
  %cd = shufflevector {BYTES} %c, {BYTES} %d, <32 x i32> {mask(range(32))}
  %r = shufflevector {LONG} %ab, {LONG} %cd, <64 x i32> {mask(IN_TURN)}
  store <64 x i8> %r, ptr %p, align 1
  ret void
}}
"""
"""All four stages at once."""

GATHER = f"""define internal {WORDS} @NAME(ptr %p, {WORDS} %o, i32, i32, i32) nounwind {{
  %all = getelementptr i8, ptr %p, {WORDS} %o
  %r = call {WORDS} @llvm.masked.gather.v4i32.v4p0(<4 x ptr> %all, i32 4, <4 x i1> splat (i1 true),
    {WORDS} poison)
  ret {WORDS} %r
}}
"""

SCATTER = f"""define internal void @NAME(ptr %p, {WORDS} %o, {WORDS} %x, i32, i32) nounwind {{
  %all = getelementptr i8, ptr %p, {WORDS} %o
  %b = trunc {WORDS} %x to <4 x i8>
  call void @llvm.masked.scatter.v4i8.v4p0(<4 x i8> %b, <4 x ptr> %all, i32 1,
    <4 x i1> splat (i1 true))
  ret void
}}
"""

MEANINGS = {
    "mve.vst4q.p0.v16i8": VST4,
    "mve.vldr.gather.offset.v4i32.p0.v4i32": GATHER,
    "mve.vstr.scatter.offset.p0.v4i32.v4i32": SCATTER,
    "mve.vmldava.v16i8": VMLAVA,
    "mve.vcvtn.v4i32.v4f32": VCVTN,
    "smlad": SMLAD,
    "smlabb": one_product("low"),
    "smlatt": one_product("high"),
    "sxtb16": SXTB16,
    "vcvtr.f32": VCVTR,
}
"""Functions called NAME, by the intrinsic below ``llvm.arm``."""
