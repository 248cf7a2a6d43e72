"""Relocations of AArch64 (ELF for the Arm 64-bit Architecture, section 5.7)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

DISTANCE = 261
"""R_AARCH64_PREL32: 32 bits, relative to their own place."""
PAGE = 275
"""R_AARCH64_ADR_PREL_PG_HI21: distance of pages of 4 KB, in the immediate of ``adrp``."""
CALLS = (283, 282)
"""R_AARCH64_CALL26 and R_AARCH64_JUMP26: distance in instructions."""
WITHIN_PAGE = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
"""R_AARCH64_ADD_ABS_LO12_NC and R_AARCH64_LDST8 to LDST128_ABS_LO12_NC: the place within a page, in
units of ``1 << shift`` bytes."""

PAGE_BITS = 12
LOW_PAGE_BITS, PAGE_FIELD = 2, (3 << 29) | (0x7FFFF << 5)
"""``adrp`` keeps the lowest two bits of its immediate apart."""
IMMEDIATE_AT, IMMEDIATE = 10, 0xFFF << 10
BRANCH = (1 << 26) - 1

JUMP = bytes.fromhex("5000005800021fd6")
"""``ldr x16, .+8; br x16``: continues at the address in the eight bytes behind it."""


class AArch64Linking:
    """Position-independent code of the small code model, which begins at a page."""

    machine = 183

    def is_call(self, kind: int) -> bool:
        return kind in CALLS

    def patch(self, data: bytearray, at: int, kind: int, target: int) -> bool:
        if kind == DISTANCE:
            data[at : at + 4] = (target - at).to_bytes(4, "little", signed=True)
            return True
        if kind in CALLS:
            field, value = BRANCH, (target - at) >> 2
        elif kind == PAGE:
            pages = (target >> PAGE_BITS) - (at >> PAGE_BITS)
            field, value = PAGE_FIELD, (pages & 3) << 29 | (pages >> LOW_PAGE_BITS) << 5
        elif kind in WITHIN_PAGE:
            within = target & ((1 << PAGE_BITS) - 1)
            field, value = IMMEDIATE, within >> WITHIN_PAGE[kind] << IMMEDIATE_AT
        else:
            return False
        word = int.from_bytes(data[at : at + 4], "little")
        data[at : at + 4] = (word & ~field | value & field).to_bytes(4, "little")
        return True

    def stub(self, address: int) -> bytes:
        return JUMP + address.to_bytes(8, "little")

    def publish(self, address: int, nbytes: int) -> bool:
        """Instruction fetch does not see the data cache: write it back, and forget instructions."""
        clear = clear_cache()
        if clear is None:
            return False
        clear(address, address + nbytes)
        return True


@cache
def clear_cache() -> Any:
    """``__clear_cache`` of the compiler's run-time library; None where that is not installed."""
    for name in (None, "libgcc_s.so.1"):
        try:
            found: Any = ctypes.CDLL(name).__clear_cache
        except (OSError, AttributeError):
            continue
        found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p), None
        return found
    return None
