"""Instruction set of AArch64: feature detection, relocations, look-up in tables, levels.

LLVM does not report all features of this processor: under emulation it omits dot products.  Linux
has them in the auxiliary vector of a process, macOS in ``sysctl``.  Code without libraries asks
Linux, because processes may not read the registers that have them.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.aarch64.dot import (
    LaneFloatDot,
    ShiftedDot,
    SignedBlocks,
    SignedDot,
    SignedPairs,
    UnsignedDot,
)
from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import BlockDot, DotProduct, WidenedDot, WordDot
from quantglow.codegen.llvm.isa.interface import ByteTable, InstructionSet, Linking
from quantglow.codegen.llvm.isa.target import Detection, Host, Level, Target, TargetFamily
from quantglow.codegen.llvm.isa.waiting import WaitInstructions, futex_waiting
from quantglow.codegen.llvm.values import (
    ABSENT,
    FLOAT,
    I8,
    I16,
    I32,
    Operand,
    Type,
    Value,
    splat,
    vector,
)
from quantglow.ir.types import DType
from quantglow.support.arrays import Array
from quantglow.support.processes.system import c_function

ARCHITECTURES = ("aarch64", "arm64")

LINUX = {"dotprod": (16, 20), "i8mm": (26, 13)}
"""By feature: the entry of the auxiliary vector (AT_HWCAP, AT_HWCAP2), and its bit there."""
MACOS = {
    "dotprod": b"hw.optional.arm.FEAT_DotProd",
    "i8mm": b"hw.optional.arm.FEAT_I8MM",
}

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

KIND = vector(16, I8)
QUARTERS = 4
"""``tbl`` and ``tbx`` look up in 64 entries; an index beyond them gives zero, or what was there."""
QUARTER = 64
HALF = 128

FUTEX = 98

ISB = "@llvm.aarch64.isb"
CLOCK_HERTZ = 2.0**30
CLOCK = """
define internal i64 @clock() nounwind {
  %ticks = call i64 @llvm.readcyclecounter()
  %read = call i64 @llvm.read_volatile_register.i64(metadata !0)
  %rate = call i64 @llvm.umax.i64(i64 %read, i64 1)
  %scale = udiv i64 1073741824, %rate
  %time = mul i64 %ticks, %scale
  ret i64 %time
}
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"CNTFRQ_EL0"}
"""
"""The counter of the generic timer, whose rate of 1 MHz to 1 GHz CNTFRQ_EL0 tells, scaled to about
2**30 ticks in a second."""

TRIPLE = "aarch64-unknown-linux-gnu"

CORE = Core(issue=4.0, latency=4.0, finish=(2.5, 3.0, 4.0))
"""A core that starts two dot products in a cycle: Neoverse N1, Cortex-A76."""


def _complete_features(host: Host) -> Host:
    """``host`` with the features that this system tells."""
    if platform.machine() not in ARCHITECTURES:
        return host
    ask = {"linux": _linux_has, "darwin": _macos_has}.get(sys.platform)
    extensions = [] if ask is None else [name for name in LINUX if not host.has(name) and ask(name)]
    return replace(host, features=",".join([host.features, *(f"+{name}" for name in extensions)]))


def _linux_has(feature: str) -> bool:
    """Whether the auxiliary vector has a feature's bit."""
    entry, bit = LINUX[feature]
    getauxval = c_function("getauxval")
    if getauxval is None:
        return False
    getauxval.argtypes, getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return bool(getauxval(entry) >> bit & 1)


def _macos_has(feature: str) -> bool:
    """Whether the kernel's setting of a feature is 1."""
    sysctl = c_function("sysctlbyname")
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    if sysctl is None:
        return False
    failed = sysctl(MACOS[feature], ctypes.byref(value), ctypes.byref(size), None, 0)
    return not failed and value.value == 1


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
        clear = _clear_cache()
        if clear is None:
            return False
        clear(address, address + nbytes)
        return True


@cache
def _clear_cache() -> Any:
    """``__clear_cache`` of the compiler's run-time library; None where that is not installed."""
    for name in (None, "libgcc_s.so.1"):
        try:
            function: Any = ctypes.CDLL(name).__clear_cache
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), None
        return function
    return None


class LookUpTable:
    """One ``tbl`` and three ``tbx``, each with indices that count from its own quarter."""

    unroll = 2
    entries_at = 0

    def packed(self, values: Array) -> Array:
        return values

    def load(self, b: Builder, entries: Value) -> list[Value]:
        return [b.load(KIND, b.at(entries, 16 * i)) for i in range(4 * QUARTERS)]

    def look_up(self, b: Builder, table: Sequence[Value], codes: Value, signed: bool) -> Value:
        entries: Value = ABSENT
        for quarter in range(QUARTERS):
            first = quarter * QUARTER ^ (HALF if signed else 0)
            index = codes
            if first:
                index = b.op("xor", KIND, codes, splat(KIND, str(first - 256 * (first >= HALF))))
            rows = [(KIND, row) for row in table[4 * quarter : 4 * quarter + 4]]
            name = "llvm.aarch64.neon.tb{}4.v16i8".format("x" if entries else "l")
            before = [(KIND, entries)] if entries else []
            entries = b.call(name, KIND, *before, *rows, (KIND, index))
        return entries


class NeonByteProducts(StrEnum):
    """How four bytes times four signed bytes are added to an int32 lane."""

    WORDS = "words"
    """Exact on any processor: bytes widened to 16 bits, ``smull`` and ``addp``."""
    DOT = "dot"
    """``sdot``: one instruction, for signed bytes."""
    MIXED = "mixed"
    """Also ``usdot``, for unsigned bytes, and products of matrices."""


@dataclass(frozen=True)
class AArch64(InstructionSet):
    """One level of AArch64."""

    products: NeonByteProducts = NeonByteProducts.WORDS

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        lanes = StepCost(self.registers, operands=0, rows=1, loads=0.25, core=core)
        if x is DType.F32:
            return LaneFloatDot(self, lanes)
        if x is DType.I16:
            return WordDot(self, StepCost(self.registers, 1.5, operands=3, core=core))
        if self.products is NeonByteProducts.WORDS:
            cost = StepCost(self.registers, 3.0, 1.0, weights=2, operands=5, core=core)
            return WidenedDot(self, cost, signed=x is not DType.U8)
        if x is not DType.U8:
            return SignedDot(self, lanes)
        if self.products is NeonByteProducts.MIXED:
            return UnsignedDot(self, lanes)
        return ShiftedDot(self, StepCost(self.registers, 1.5, operands=4, core=core))

    def block_product(self, x: DType, core: Core) -> BlockDot | None:
        if self.products is not NeonByteProducts.MIXED or x is not DType.I8:
            return None
        cost = StepCost(self.registers, 0.25, 0.1, 2, 0, rows=1, loads=0.25, together=2, core=core)
        return SignedBlocks(self, cost)

    def symmetric_product(self, x: DType, core: Core) -> DotProduct | None:
        if self.products is not NeonByteProducts.WORDS or x is not DType.I8:
            return None
        cost = StepCost(self.registers, 2.0, 1.0, operands=4, loads=2.0, core=core)
        return SignedPairs(self, cost)

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        """``smull`` of both halves, then sums of neighbors."""
        halves, ints = vector(4, I16), vector(4, I32)
        products = []
        for first in (0, 4):
            order = range(first, first + 4)
            left, right = (b.shuffle(vector(8, I16), v, "poison", order) for v in (x, y))
            name = "llvm.aarch64.neon.smull.v4i32"
            products.append((ints, b.call(name, ints, (halves, left), (halves, right))))
        return b.call("llvm.aarch64.neon.addp.v4i32", ints, *products)

    def keep(self, b: Builder, kind: Type, value: Value) -> Value:
        """An identity that LLVM cannot look through."""
        return b.in_register(value, "w")

    # -- results

    @property
    def group_nbytes(self) -> int:
        """Packs leave one operand after the other."""
        return self.vector_nbytes

    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        return self._narrowed(b, "sqxtn.v4i16", (vector(4, I32), vector(4, I16)), (x, y))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        name = "sqxtn.v8i8" if signed else "sqxtun.v8i8"
        return self._narrowed(b, name, (vector(8, I16), vector(8, I8)), (x, y))

    def _narrowed(
        self, b: Builder, name: str, kinds: tuple[Type, Type], values: Sequence[Value]
    ) -> Value:
        """Two vectors saturated to elements of half the size, one after the other."""
        wide, half = kinds
        x, y = (b.call(f"llvm.aarch64.neon.{name}", half, (wide, value)) for value in values)
        return b.shuffle(half, x, y, range(2 * half.lanes))

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvtns``, which saturates, and the minimum for NaN."""
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        rounded = self.round_number(b, lanes, value)
        is_number = b.compare("ord", kind, value, value)
        return b.select(ints, is_number, rounded, splat(ints, str(-(2**31))))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvtns``, four lanes at a time."""
        name = "llvm.aarch64.neon.fcvtns"
        if lanes == 1:
            return b.call(f"{name}.i32.f32", I32, (FLOAT, value))
        width = min(lanes, self.vector_nbytes // 4)
        kind, ints = vector(width, FLOAT), vector(width, I32)
        parts = [value]
        if lanes > width:
            whole = vector(lanes, FLOAT)
            starts = range(0, lanes, width)
            parts = [b.shuffle(whole, value, "poison", range(i, i + width)) for i in starts]
        parts = [b.call(f"{name}.v{width}i32.v{width}f32", ints, (kind, part)) for part in parts]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [b.shuffle(vector(width, I32), x, y, range(2 * width)) for x, y in pairs]
            width *= 2
        return parts[0]

    # -- look-up

    @property
    def byte_table(self) -> ByteTable | None:
        return LookUpTable()

    # -- measuring

    def unknown(self, b: Builder, kind: Type, value: Value) -> Value:
        return b.in_register(value, "w", is_used=True)

    def use(self, b: Builder, kind: Type, value: Value) -> None:
        b.do(f'call void asm sideeffect "", "w"({kind} {value})')

    # -- system

    @property
    def waiting(self) -> WaitInstructions:
        """``isb`` takes about as long as x86's ``pause``; ``yield`` does nothing on most cores."""
        pause, clock = f"call void {ISB}(i32 15)", "call i64 @clock()"
        declarations = f"declare void {ISB}(i32)\n{CLOCK}"
        return futex_waiting(FUTEX, pause, clock, CLOCK_HERTZ, declarations)

    @property
    def linking(self) -> Linking | None:
        return AArch64Linking()


_NEON = AArch64(16, 32, unsigned_activations=False, has_fma=True, rounds_floats=True)
_DOTPROD = replace(_NEON, products=NeonByteProducts.DOT)
_I8MM = replace(_NEON, products=NeonByteProducts.MIXED)

LEVELS = (
    Level("i8mm", "generic", "+dotprod,+i8mm", _I8MM, ("dotprod", "i8mm")),
    Level("dotprod", "generic", "+dotprod", _DOTPROD, ("dotprod",)),
    Level("neon", "generic", "", _NEON),
)
"""``neon`` runs on every processor of the architecture."""


def tune(level: Level, host: Host) -> Target:
    """A level for exactly this processor."""
    return Target(level.name, host.triple, host.cpu, host.features, level.isa, CORE)


FAMILY = TargetFamily(TRIPLE, LEVELS, tune, ARCHITECTURES, _complete_features, detection=DETECTION)
