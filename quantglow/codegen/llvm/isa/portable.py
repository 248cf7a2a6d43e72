"""The instruction set of plain LLVM IR: no intrinsic of any processor.

It runs on every processor that LLVM knows, and it judges the others: their integers equal its own.
Activations are stored as they are, signed.
"""

from __future__ import annotations

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import DotProduct, FloatDot, WidenedDot, WordDot
from quantglow.codegen.llvm.isa.interface import InstructionSet
from quantglow.codegen.llvm.isa.target import Host, Level, Target, TargetFamily
from quantglow.codegen.llvm.isa.waiting import WaitInstructions, polling
from quantglow.codegen.llvm.values import (
    FLOAT,
    I8,
    I16,
    I32,
    Operand,
    Type,
    Value,
    f32,
    splat,
    vector,
)
from quantglow.ir.types import DType

MOST_VECTORS = 4
TWO_POW_23 = 8388608.0
"""float32 values at least this large are integers."""
GREATEST_INT = 2147483520.0
"""The greatest float32 that int32 holds."""


class Portable(InstructionSet):
    """Vectors that LLVM maps to the registers there are."""

    # -- products

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.F32:
            return FloatDot(self, StepCost(self.registers, core=core))
        if x is DType.I16:
            cost = StepCost(self.registers, 0.75, operands=2, most_vectors=MOST_VECTORS)
            return WordDot(self, cost)
        cost = StepCost(self.registers, 1.0, 0.5, weights=2, operands=3, most_vectors=MOST_VECTORS)
        return WidenedDot(self, cost, signed=x is not DType.U8)

    def word_products(self, b: Builder, x: Operand, y: Operand) -> Value:
        lanes = self.vector_nbytes // 4
        words, halves, ints = vector(2 * lanes, I16), vector(lanes, I16), vector(lanes, I32)
        products = []
        for first in (0, 1):
            order = range(first, 2 * lanes, 2)
            left, right = (
                b.cast("sext", halves, b.shuffle(words, v, "poison", order), ints) for v in (x, y)
            )
            products.append(b.op("mul", ints, left, right))
        return b.op("add", ints, *products)

    # -- results

    @property
    def group_nbytes(self) -> int:
        """Packs leave one operand after the other."""
        return self.vector_nbytes

    def pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        return self._packed(b, (I32, I16), (x, y), (-(2**15), 2**15 - 1))

    def pack_bytes(self, b: Builder, x: Value, y: Value, signed: bool) -> Value:
        return self._packed(b, (I16, I8), (x, y), (-128, 127) if signed else (0, 255))

    def _packed(
        self,
        b: Builder,
        elements: tuple[Type, Type],
        values: tuple[Value, Value],
        limits: tuple[int, int],
    ) -> Value:
        """Two vectors, saturated and truncated to the second of the elements, one after the
        other."""
        source, result = elements
        lanes = self.vector_nbytes * 8 // source.nbits
        kind, halves = vector(lanes, source), vector(lanes, result)
        parts = []
        for value in values:
            for name, limit in zip(("smax", "smin"), limits, strict=True):
                bound = (kind, splat(kind, str(limit)))
                value = b.call(f"llvm.{name}.v{lanes}{source}", kind, (kind, value), bound)
            parts.append(b.cast("trunc", kind, value, halves))
        return b.shuffle(halves, parts[0], parts[1], range(2 * lanes))

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """Adding 2**23 with the sign of |x| < 2**23 leaves no fraction, so the addition itself
        rounds half to even; larger values are integers, and limited to what int32 holds."""
        kind, ints = vector(lanes, FLOAT), vector(lanes, I32)
        low, high = (splat(kind, f32(bound)) for bound in (-(2.0**31), GREATEST_INT))
        value = b.select(kind, b.compare("ogt", kind, value, low), value, low)
        value = b.select(kind, b.compare("olt", kind, value, high), value, high)
        pattern = b.cast("bitcast", kind, value, ints)
        sign = b.op("and", ints, pattern, splat(ints, str(-(2**31))))
        magnitude = b.op("and", ints, pattern, splat(ints, str(2**31 - 1)))
        magnitude = b.cast("bitcast", ints, magnitude, kind)
        large = splat(kind, f32(TWO_POW_23))
        shift = b.op("or", ints, sign, b.cast("bitcast", kind, large, ints))
        shift = b.cast("bitcast", ints, shift, kind)
        rounded = b.op("fsub", kind, b.op("fadd", kind, value, shift), shift)
        small = b.compare("olt", kind, magnitude, large)
        return b.cast("fptosi", kind, b.select(kind, small, rounded, value), ints)

    # -- measuring

    def unknown(self, b: Builder, kind: Type, value: Value) -> Value:
        memory = b.room(kind)
        b.do(f"store volatile {kind} {value}, ptr {memory}")
        return b.load_volatile(kind, memory)

    def use(self, b: Builder, kind: Type, value: Value) -> None:
        b.do(f"store volatile {kind} {value}, ptr {b.room(kind)}")

    # -- system

    @property
    def waiting(self) -> WaitInstructions:
        return polling("linux")


PORTABLE = Level("portable", "", "", Portable(16, 16, unsigned_activations=False))


def tune(level: Level, host: Host) -> Target:
    """Code for every processor of the architecture."""
    return Target(level.name, host.triple, level.cpu, level.features, level.isa)


FAMILY = TargetFamily("", (PORTABLE,), tune)
