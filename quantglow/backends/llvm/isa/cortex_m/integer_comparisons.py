"""Comparisons of float32 with constants as integers, for processors whose floating point is
software.

Patterns of numbers of one sign are in the order of their magnitudes, and end with those of NaN: a
number is above a constant that is not negative, or below one that is not positive, if its pattern
lies in a range.
"""

from __future__ import annotations

import re
import struct

from quantglow.backends.llvm.builder import splat

_VALUE, _LITERAL = r"%[\w.]+", r"0x[0-9A-F]{16}|splat \(float 0x[0-9A-F]{16}\)"
_OPERAND = rf"({_VALUE}|{_LITERAL})"
_COMPARISON = re.compile(
    rf"^  ({_VALUE}) = fcmp o([lg])t (float|<\d+ x float>) {_OPERAND}, {_OPERAND}$", re.MULTILINE
)
_NUMBER = re.compile(r"0x([0-9A-F]{16})")
SIGN, INFINITY = 1 << 31, 0x7F800000


def with_integer_comparisons(text: str) -> str:
    """The same LLVM IR without calls for comparisons of that kind."""
    return _COMPARISON.sub(_compared, text)


def _compared(match: re.Match[str]) -> str:
    """The lines that a comparison becomes."""
    name, side, kind, x, y = match.groups()
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
    ints = kind.replace("float", "i32")
    signed = first - 2 * SIGN if first >= SIGN else first
    start, count = (splat(ints, str(number)) for number in (signed, INFINITY - bits))
    return "\n".join(
        (
            f"  {name}.bits = bitcast {kind} {value} to {ints}",
            f"  {name}.over = sub {ints} {name}.bits, {start}",
            f"  {name} = icmp ult {ints} {name}.over, {count}",
        )
    )
