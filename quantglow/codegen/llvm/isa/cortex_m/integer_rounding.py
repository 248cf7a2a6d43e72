"""Requantization and comparisons with constants in integers, where floats are slow.

Requantization computes what float32 arithmetic would, rounding by rounding: an int32 sum to 24
bits, its product with a float32 multiplier to 24 bits, and that to an integer, each half to even.
No instruction is wider than 32 bits: the product is made of four, of 12 bits by 12 bits.

Comparisons use that the patterns of numbers of one sign are in the order of their magnitudes, and
end with those of NaN: a number is above a constant that is not negative, or below one that is not
positive, if its pattern lies in a range.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.values import FLOAT, I32, Type, Value, poison, splat, vector

LANES = 4
WORDS = vector(4, I32)

LARGE = 1 << 23
"""Result for all products that are greater: beyond the limits of 16 bits."""

_NORMALIZED = "".join(
    f"""  %is{step} = icmp ult i32 %u{step}, {1 << (32 - step)}
  %by{step} = select i1 %is{step}, i32 {step}, i32 0
  %u{step // 2} = shl i32 %u{step}, %by{step}
  %z{step // 2} = add i32 %z{step}, %by{step}
"""
    for step in (16, 8, 4, 2, 1)
)
"""``%u16`` shifted left to its highest bit, as ``%u0``; by how many bits, as ``%z0``."""

_SIGNED = """  %negative = sub i32 0, %magnitude
  %result = select i1 %sign, i32 %negative, i32 %magnitude
  ret i32 %result
}
"""

_TO_INTEGER = """  %base = lshr i32 %q, %r
  %left = sub i32 32, %r
  %rest = shl i32 %q, %left
  %odd = and i32 %base, 1
  %tie = sub i32 -2147483648, %odd
  %up = icmp ugt i32 %rest, %tie
  %one = zext i1 %up to i32
  %nearest = add i32 %base, %one
"""
"""``%q >> %r`` rounded half to even, for 0 < r < 25."""

REQUANTIZED = f"""define linkonce_odr i32 @requantized(i32 %sum, i32 %scale) nounwind {{
entry:
  %sign = icmp slt i32 %sum, 0
  %less = sub i32 0, %sum
  %u16 = select i1 %sign, i32 %less, i32 %sum
  %z16 = add i32 0, 0
{_NORMALIZED}  %top = lshr i32 %u0, 8
  %dropped = and i32 %u0, 255
  %top.odd = and i32 %top, 1
  %top.tie = sub i32 128, %top.odd
  %top.up = icmp ugt i32 %dropped, %top.tie
  %top.one = zext i1 %top.up to i32
  %a = add i32 %top, %top.one
  %fraction = and i32 %scale, 8388607
  %m = or i32 %fraction, 8388608
  %a1 = lshr i32 %a, 12
  %a0 = and i32 %a, 4095
  %m1 = lshr i32 %m, 12
  %m0 = and i32 %m, 4095
  %p11 = mul i32 %a1, %m1
  %p10 = mul i32 %a1, %m0
  %p01 = mul i32 %a0, %m1
  %p00 = mul i32 %a0, %m0
  %mid = add i32 %p10, %p01
  %mid.low = and i32 %mid, 4095
  %mid.up = shl i32 %mid.low, 12
  %low = add i32 %p00, %mid.up
  %carry = lshr i32 %low, 24
  %mid.high = lshr i32 %mid, 12
  %high.less = add i32 %p11, %mid.high
  %high = add i32 %high.less, %carry
  %short = icmp ult i32 %high, 8388608
  %by = zext i1 %short to i32
  %low.aligned = shl i32 %low, 8
  %out = lshr i32 %low.aligned, 31
  %in = and i32 %out, %by
  %high.moved = shl i32 %high, %by
  %h = or i32 %high.moved, %in
  %l = shl i32 %low.aligned, %by
  %h.odd = and i32 %h, 1
  %h.tie = sub i32 -2147483648, %h.odd
  %h.up = icmp ugt i32 %l, %h.tie
  %h.one = zext i1 %h.up to i32
  %q = add i32 %h, %h.one
  %exponent = lshr i32 %scale, 23
  %z = add i32 %z0, %by
  %point = add i32 %z, 118
  %r = sub i32 %point, %exponent
{_TO_INTEGER}  %is.large = icmp slt i32 %r, 1
  %is.small = icmp sgt i32 %r, 24
  %no.scale = icmp eq i32 %exponent, 0
  %no.sum = icmp eq i32 %sum, 0
  %nothing = or i1 %no.scale, %no.sum
  %is.zero = or i1 %nothing, %is.small
  %bounded = select i1 %is.large, i32 {LARGE}, i32 %nearest
  %magnitude = select i1 %is.zero, i32 0, i32 %bounded
{_SIGNED}"""
"""``rint(float32(sum) * scale)``, as int32, up to magnitudes of ``LARGE``; ``scale``: the bits of a
positive float32.  Multipliers below 2**-126 make no sum as large as a half."""

ROUNDED = f"""define linkonce_odr i32 @rounded(i32 %x) nounwind {{
entry:
  %sign = icmp slt i32 %x, 0
  %biased = lshr i32 %x, 23
  %exponent = and i32 %biased, 255
  %fraction = and i32 %x, 8388607
  %q = or i32 %fraction, 8388608
  %r = sub i32 150, %exponent
{_TO_INTEGER}  %more = sub i32 %exponent, 150
  %shifted = shl i32 %q, %more
  %is.whole = icmp slt i32 %r, 1
  %is.small = icmp sgt i32 %r, 24
  %is.large = icmp ugt i32 %exponent, 157
  %within = select i1 %is.whole, i32 %shifted, i32 %nearest
  %zeroed = select i1 %is.small, i32 0, i32 %within
  %magnitude = select i1 %is.large, i32 -2147483648, i32 %zeroed
{_SIGNED}"""
"""The float32 of the bits ``x`` rounded half to even; the minimum for NaN and beyond int32."""

_VALUE, _LITERAL = r"%[\w.]+", r"0x[0-9A-F]{16}|splat \(float 0x[0-9A-F]{16}\)"
_OPERAND = rf"({_VALUE}|{_LITERAL})"
_COMPARISON = re.compile(
    rf"^  ({_VALUE}) = fcmp o([lg])t (?:<(\d+) x )?float>? {_OPERAND}, {_OPERAND}$", re.MULTILINE
)
_NUMBER = re.compile(r"0x([0-9A-F]{16})")
SIGN, INFINITY = 1 << 31, 0x7F800000


def element(b: Builder, kind: Type, values: Value, index: int) -> Value:
    """A lane as a scalar."""
    return b.extract(values, index)


def build_vector(b: Builder, kind: Type, values: Sequence[Value]) -> Value:
    """Scalars as a vector."""
    result: Value = poison(kind)
    for index, value in enumerate(values):
        result = b.insert(result, value, index)
    return result


def call_by_lanes(b: Builder, name: str, definition: str, lanes: int, *values: Value) -> Value:
    """A function of int32, lane by lane."""
    b.declarations[name] = definition
    if lanes == 1:
        return b.emit(I32, f"call i32 @{name}({', '.join(f'i32 {value}' for value in values)})")
    kind = vector(lanes, I32)
    results = []
    for lane in range(lanes):
        scalars = (element(b, kind, value, lane) for value in values)
        results.append(call_by_lanes(b, name, definition, 1, *scalars))
    return build_vector(b, kind, results)


def with_integer_comparisons(text: str) -> str:
    """The same LLVM IR without calls for comparisons of that kind."""
    return _COMPARISON.sub(_replace_comparison, text)


def _replace_comparison(match: re.Match[str]) -> str:
    """The lines that a comparison becomes."""
    name, side, lanes, x, y = match.groups()
    if not y.startswith("%"):
        value, constant, above = x, y, side == "g"
    else:
        value, constant, above = y, x, side == "l"
    pattern = _NUMBER.search(constant)
    if pattern is None or not value.startswith("%"):
        return match[0]
    (limit,) = struct.unpack(">d", bytes.fromhex(pattern[1]))
    if not (limit >= 0 if above else limit <= 0):  # NaN neither
        return match[0]
    (bits,) = struct.unpack("<i", struct.pack("<f", abs(limit)))
    first = bits + 1 + (0 if above else SIGN)
    kind = vector(int(lanes or 1), FLOAT)
    ints = kind.with_element(I32)
    signed = first - 2 * SIGN if first >= SIGN else first
    start, count = (splat(ints, str(number)) for number in (signed, INFINITY - bits))
    return "\n".join(
        (
            f"  {name}.bits = bitcast {kind} {value} to {ints}",
            f"  {name}.over = sub {ints} {name}.bits, {start}",
            f"  {name} = icmp ult {ints} {name}.over, {count}",
        )
    )
