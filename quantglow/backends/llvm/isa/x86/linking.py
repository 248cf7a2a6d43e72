"""Relocations of x86-64 (System V ABI, AMD64 supplement, section 4.4)."""

from __future__ import annotations

DISTANCE, CALL = 2, 4
"""R_X86_64_PC32 and R_X86_64_PLT32: 32 bits, relative to their own place."""
JUMP = bytes.fromhex("ff2500000000")
"""``jmp [rip]``: continues at the address in the eight bytes behind it."""


class X86Linking:
    """Position-independent code of the small code model."""

    machine = 62

    def is_call(self, kind: int) -> bool:
        return kind == CALL

    def patch(self, data: bytearray, at: int, kind: int, target: int) -> bool:
        if kind not in (DISTANCE, CALL):
            return False
        data[at : at + 4] = (target - at).to_bytes(4, "little", signed=True)
        return True

    def stub(self, address: int) -> bytes:
        return JUMP + address.to_bytes(8, "little")

    def publish(self, address: int, nbytes: int) -> bool:
        """Processors see to it themselves."""
        return True
