"""The meaning of WebAssembly's instructions in plain LLVM IR."""

from __future__ import annotations

from quantglow.codegen.llvm.values import I8, I16, I32, Type
from tests.matrix.plain_ir.text import narrowed, shuffled

PREFIX = "llvm.wasm."
WORDS, WIDE = "<8 x i16>", "<8 x i32>"


def dot() -> str:
    """``i32x4.dot_i16x8_s``"""
    text = f"""define internal <4 x i32> @NAME({WORDS} %x, {WORDS} %y) nounwind {{
  %a = sext {WORDS} %x to {WIDE}
  %b = sext {WORDS} %y to {WIDE}
  %p = mul {WIDE} %a, %b
"""
    text += shuffled("%even", WIDE, "%p", range(0, 8, 2))
    text += shuffled("%odd", WIDE, "%p", range(1, 8, 2))
    return text + "  %r = add <4 x i32> %even, %odd\n  ret <4 x i32> %r\n}\n"


def both_narrowed(lanes: int, element: Type, wide: Type, limits: tuple[int, int]) -> str:
    """Two vectors of ``lanes`` saturated, one after the other."""
    kind = f"<{lanes} x {wide}>"
    inner = narrowed(2 * lanes, element, wide, *limits)
    order = ", ".join(f"i32 {i}" for i in range(2 * lanes))
    joined = f"  %x = shufflevector {kind} %l, {kind} %h, <{2 * lanes} x i32> <{order}>\n"
    return inner.replace(
        f"(<{2 * lanes} x {wide}> %x) nounwind {{\n",
        f"({kind} %l, {kind} %h) nounwind {{\n{joined}",
    )


MEANINGS = {
    "dot": dot(),
    "narrow.signed.v8i16.v4i32": both_narrowed(4, I16, I32, (-(2**15), 2**15 - 1)),
    "narrow.signed.v16i8.v8i16": both_narrowed(8, I8, I16, (-128, 127)),
    "narrow.unsigned.v16i8.v8i16": both_narrowed(8, I8, I16, (0, 255)),
}
"""Functions called NAME, by the intrinsic below ``llvm.wasm``."""
