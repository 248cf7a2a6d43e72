"""The meaning of Cortex-M's instructions in plain LLVM IR."""

from __future__ import annotations

PREFIX = "llvm.arm."


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

MEANINGS = {
    "mve.vmldava.v16i8": VMLAVA,
    "mve.vcvtn.v4i32.v4f32": VCVTN,
    "smlad": SMLAD,
    "smlabb": one_product("low"),
    "smlatt": one_product("high"),
    "sxtb16": SXTB16,
    "vcvtr.f32": VCVTR,
}
"""Functions called NAME, by the intrinsic below ``llvm.arm``."""
