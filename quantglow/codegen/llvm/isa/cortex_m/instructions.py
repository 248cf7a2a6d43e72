"""Instruction sets of Cortex-M: sixteen 32-bit registers, or Cortex-M55's vectors; levels.

On Cortex-M55 (eight registers of 16 bytes: MVE, called Helium) ``vcmp`` of a vector with a general
register holds for NaN, too, where it compares for less, or less or equal.  LLVM selects it for
``c > x`` and ``c >= x`` if c is one number in all lanes.  ``with_ordered_comparisons`` turns such
comparisons into those of ``-x > -c``, which LLVM translates as they stand.

Its vectors of float32 flush numbers below ``2**-126`` to zero.  Requantized sums stay: any int32
times such a multiplier rounds to zero anyway, and so does a product as small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.cortex_m import float_arithmetic, float_functions
from quantglow.codegen.llvm.isa.cortex_m.dot import (
    HalvesDot,
    HalvesProducts,
    MergedHalvesDot,
    SingleDot,
    SingleProducts,
    smlad,
)
from quantglow.codegen.llvm.isa.cortex_m.integer_rounding import (
    LANES,
    REQUANTIZED,
    ROUNDED,
    build_vector,
    call_by_lanes,
    element,
    with_integer_comparisons,
)
from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import DotProduct, LaneProducts, MergedDot, WindowWords
from quantglow.codegen.llvm.isa.interface import Sharing, Steps
from quantglow.codegen.llvm.isa.portable import Portable
from quantglow.codegen.llvm.isa.target import Host, Level, Settings, Target, TargetFamily
from quantglow.codegen.llvm.isa.waiting import WaitInstructions
from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, PTR, Operand, Value, splat, vector
from quantglow.ir.types import DType

_NAME, _LITERAL = r"(%[\w.]+)", r"(splat \(float \w+\))"
_OPERAND = r"(%[\w.]+|splat \(float \w+\))"
_COMPARISON = re.compile(rf"  {_NAME} = fcmp o([lg])([te]) <(\d+) x float> {_OPERAND}, {_OPERAND}")
_CHOICE = re.compile(
    rf"  {_NAME} = select <\d+ x i1> {_NAME}, <\d+ x float> {_NAME}, <\d+ x float> {_LITERAL}"
)
_FIRST = re.compile(rf"  {_NAME} = insertelement <\d+ x float> poison, float \S+, i32 0")
_SPREAD = re.compile(rf"  {_NAME} = shufflevector <\d+ x float> {_NAME}, .*> zeroinitializer")

TILE_REGISTERS = 3
"""Vectors of four that the tile of a dot product may take: one of sums, and its operands."""

SIGNED = ((I32, "0"), (I32, "0"), (I32, "0"))
"""Neither unsigned nor subtracted nor exchanged."""
BYTES, WORDS = vector(16, I8), vector(4, I32)
STAGES = 4
"""Instructions that store four vectors in turn, each a part of all bytes."""

ARCHITECTURES = ("thumbv",)

ARMV6 = "thumbv6m-unknown-none-eabi"
ARMV7E = "thumbv7em-unknown-none-eabihf"
ARMV8 = "thumbv8m.main-unknown-none-eabihf"
ARMV81 = "thumbv8.1m.main-unknown-none-eabihf"
"""Triples need four parts: of three, LLVM takes ``none`` for the vendor, and passes floats in
integer registers."""

SINGLE = "-fp64"
"""Some Cortex-M7 have no double precision."""


@dataclass
class Comparisons:
    """Facts about the vectors of a function.

    ``spread``    vectors that are one number in all lanes, and those that have it in the first
    ``choices``   operands of comparisons ``x > c``
    ``numbers``   results of ``x > c ? x : c``, which are no NaN
    """

    spread: set[str] = field(default_factory=set)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)

    def line(self, line: str) -> list[str]:
        """The lines of LLVM IR that a line becomes."""
        if match := _FIRST.fullmatch(line):
            self.spread.add(match[1])
        elif match := _SPREAD.fullmatch(line):
            self.spread |= {match[1]} if match[2] in self.spread else set()
        elif match := _CHOICE.fullmatch(line):
            name, condition, *operands = match.groups()
            self.numbers |= {name} if self.choices.get(condition) == (*operands,) else set()
        elif match := _COMPARISON.fullmatch(line):
            name, side, end, lanes, x, y = match.groups()
            kind = vector(int(lanes), FLOAT)
            self.choices |= {name: (x, y)} if side + end == "gt" else {}
            greater, less = (x, y) if side == "g" else (y, x)
            if self._is_spread(greater) and not self._is_spread(less) and less not in self.numbers:
                lines, operands = [], []
                for operand, label in ((less, "less"), (greater, "greater")):
                    operands.append(f"{name}.{label}")
                    lines.append(f"  {operands[-1]} = fneg {kind} {operand}")
                return [*lines, f"  {name} = fcmp og{end} {kind} {', '.join(operands)}"]
        return [line]

    def _is_spread(self, operand: str) -> bool:
        """Whether an operand is one number in all lanes."""
        return operand.startswith("splat") or operand in self.spread


def with_ordered_comparisons(text: str) -> str:
    """The same LLVM IR, whose comparisons of float32 vectors are false for NaN."""
    comparisons = Comparisons()
    return "\n".join(each for line in text.split("\n") for each in comparisons.line(line))


@dataclass(frozen=True)
class CortexM(Portable):
    """Vectors of four lanes that are scalars for the processor."""

    @property
    def waiting(self) -> WaitInstructions:
        """Nothing: there are no threads, and no clock that all processors have."""
        return WaitInstructions("", "", "", "add i64 0, 0", 1e9, "")

    @property
    def prefetches(self) -> bool:
        return False

    @property
    def sharing(self) -> Sharing:
        return Sharing.OUTER

    @property
    def float_lanes(self) -> int:
        """Steps of four elements share what a loop costs."""
        return 4


class SmallCortexM(CortexM):
    """Armv6-M: one product in an instruction, and floating point in software."""

    @property
    def sharing(self) -> Sharing:
        """Addresses in loops, too: offsets in instructions are short anyway."""
        return Sharing.ALL

    @property
    def float_lanes(self) -> int:
        """Floating point in software takes so long that loops cost nothing beside it."""
        return 1

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.I8:
            return SingleDot(self, StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core))
        return super().dot_product(x, core)

    @property
    def lane_products(self) -> LaneProducts | None:
        return SingleProducts()

    # -- results

    @property
    def requantizes_integers(self) -> bool:
        return True

    def requantized(self, b: Builder, lanes: int, sums: Value, scale: Operand) -> Value:
        ints = b.cast("bitcast", vector(lanes, FLOAT), scale, vector(lanes, I32))
        return call_by_lanes(b, "requantized", REQUANTIZED, lanes, sums, ints)

    def scaled(self, b: Builder, lanes: int, sums: Value, scale: Operand) -> Value:
        return float_functions.scale_sums(b, lanes, sums, scale, super().scaled)

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        ints = b.cast("bitcast", vector(lanes, FLOAT), value, vector(lanes, I32))
        return call_by_lanes(b, "rounded", ROUNDED, lanes, ints)

    # -- code generation

    def legal(self, text: str) -> str:
        return with_integer_comparisons(text)

    def function(
        self, b: Builder, name: str, lanes: int, x: Value, steps: Mapping[str, Steps]
    ) -> Value:
        return float_functions.function(b, name, lanes, x, steps)

    def routines(self, texts: Sequence[str]) -> str:
        return float_arithmetic.routines(texts)

    @property
    def routine_levels(self) -> Sequence[set[str]]:
        return (*float_functions.LEVELS, *float_arithmetic.LEVELS)


class SignalCortexM(CortexM):
    """Armv7E-M and Armv8-M with the extensions for signal processing and float32."""

    @property
    def branches(self) -> bool:
        return True

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.I8:
            cost = StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core)
            return HalvesDot(self, cost)
        return super().dot_product(x, core)

    def merged_product(self, core: Core) -> MergedDot | None:
        cost = StepCost(TILE_REGISTERS, operands=0, most_vectors=1, core=core)
        return MergedHalvesDot(self, cost)

    @property
    def lane_products(self) -> LaneProducts | None:
        return HalvesProducts()

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        words, pairs = vector(LANES, I32), vector(2 * LANES, I16)
        left, right = (b.cast("bitcast", pairs, v, words) for v in (x, y))
        products = [
            smlad(b, "0", element(b, words, left, i), element(b, words, right, i))
            for i in range(LANES)
        ]
        return build_vector(b, words, products)

    # -- results

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtr``, which saturates, and the minimum for NaN."""
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        rounded = self.round_number(b, lanes, value)
        is_number = b.compare("ord", kind, value, value)
        return b.select(ints, is_number, rounded, splat(ints, str(-(2**31))))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtr``: rounds as the processor is set, which is half to even."""
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        if lanes == 1:
            return round_to_even(b, value)
        return build_vector(
            b, ints, [round_to_even(b, element(b, kind, value, i)) for i in range(lanes)]
        )


def round_to_even(b: Builder, value: Value) -> Value:
    """A float32 rounded half to even, as int32."""
    register = b.call("llvm.arm.vcvtr.f32", FLOAT, (FLOAT, value))
    return b.cast("bitcast", FLOAT, register, I32)


class HeliumWords:
    """``vst4``, and loads and stores with a vector of offsets."""

    def store_in_turn(self, b: Builder, vectors: Sequence[Value], pointer: Value) -> None:
        operands = [(PTR, pointer), *((BYTES, each) for each in vectors)]
        for stage in range(STAGES):
            b.do_call("llvm.arm.mve.vst4q.p0.v16i8", *operands, (I32, str(stage)))

    def gather_words(self, b: Builder, pointer: Value, offsets: Operand) -> Value:
        how = ((I32, "32"), (I32, "0"), (I32, "0"))
        operands = ((PTR, pointer), (WORDS, offsets), *how)
        return b.call("llvm.arm.mve.vldr.gather.offset.v4i32.p0.v4i32", WORDS, *operands)

    def scatter_bytes(self, b: Builder, values: Value, pointer: Value, offsets: Value) -> None:
        operands = ((PTR, pointer), (WORDS, offsets), (WORDS, values))
        name = "llvm.arm.mve.vstr.scatter.offset.p0.v4i32.v4i32"
        b.do_call(name, *operands, (I32, "8"), (I32, "0"))


class Helium(SignalCortexM):
    """Vectors in registers; sums of products of whole vectors are scalars."""

    @property
    def float_lanes(self) -> int:
        return 0

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        return Portable.dot_product(self, x, core)

    def merged_product(self, core: Core) -> MergedDot | None:
        return None

    @property
    def row_products(self) -> bool:
        return True

    def row_product(self, b: Builder, total: Operand, x: Value, w: Value) -> Value:
        """``vmlava``"""
        operands = ((I32, total), (BYTES, x), (BYTES, w))
        return b.call("llvm.arm.mve.vmldava.v16i8", I32, *SIGNED, *operands)

    @property
    def window_words(self) -> WindowWords | None:
        return HeliumWords()

    @property
    def lane_products(self) -> LaneProducts | None:
        return SingleProducts()

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        return Portable.word_products(self, b, x, y)

    # -- code generation

    def legal(self, text: str) -> str:
        return with_ordered_comparisons(text)

    # -- results

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vcvtn``, four lanes at a time."""
        if lanes == 1:
            return round_to_even(b, value)
        if lanes == LANES:
            operands = ((I32, "0"), (vector(4, FLOAT), value))
            return b.call("llvm.arm.mve.vcvtn.v4i32.v4f32", vector(4, I32), *operands)
        half, kind = lanes // 2, vector(lanes, FLOAT)
        parts = []
        for first in (0, half):
            part = b.shuffle(kind, value, "poison", range(first, first + half))
            parts.append(self.round_number(b, half, part))
        return b.shuffle(vector(half, I32), parts[0], parts[1], range(lanes))


_M0 = SmallCortexM(16, 16, unsigned_activations=False, index=I32)
_M4 = SignalCortexM(16, 16, unsigned_activations=False, has_fma=True, index=I32)
_M7 = replace(_M4, rounds_floats=True)
_M55 = Helium(16, 8, unsigned_activations=False, has_fma=True, rounds_floats=True, index=I32)


def refusal() -> str:
    """The reason why code for microcontrollers does not run in a process of Python."""
    return "it is a microcontroller"


LEVELS = (
    Level("cortex-m55", "cortex-m55", "", _M55, (), refusal, ARMV81),
    Level("cortex-m33", "cortex-m33", "", _M7, (), refusal, ARMV8),
    Level("cortex-m7", "cortex-m7", SINGLE, _M7, (), refusal, ARMV7E),
    Level("cortex-m4", "cortex-m4", "", _M4, (), refusal, ARMV7E),
    Level("cortex-m0plus", "cortex-m0plus", "", _M0, (), refusal, ARMV6),
)


def tune(level: Level, host: Host) -> Target:
    """A level as it is."""
    return FAMILY.target(level, host.triple)


FAMILY = TargetFamily(ARMV7E, LEVELS, tune, ARCHITECTURES, settings=Settings(reloc="static"))
