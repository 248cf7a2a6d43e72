"""RISC-V 64, scalar or with vectors: dot products, instructions, feature levels.

A dot product multiplies one activation by a vector of weights.  LLVM selects ``vwmacc.vx`` for a
scalar of 16 bits in every lane, times words, both widened, plus a vector of int32; without vectors,
``mul`` and ``addw``.  Weights are packed in a vector for each element of a step, bytes as bytes.

Conversions of float32 to int32 saturate, and make the greatest integer of NaN.  A vector is rounded
as the thread rounds: to the nearest, half to even, which no kernel changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.costs import Core, StepCost
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES, DotProduct, FloatDot, WidenedDot
from quantglow.codegen.llvm.isa.portable import Portable, tune
from quantglow.codegen.llvm.isa.target import Detection, Level, Settings, TargetFamily
from quantglow.codegen.llvm.values import (
    FLOAT,
    I16,
    I32,
    Type,
    Value,
    bits_type,
    f32,
    poison,
    splat,
    vector,
)
from quantglow.ir.types import DType
from quantglow.support.arrays import Array

LEAST = -(2.0**31)
PRODUCT = 2.0
"""Cycles of four multiplications of vectors, or of as many conversions."""

TRIPLE = "riscv64-unknown-linux-gnu"
FEATURES = "+m,+a,+f,+d,+c"
CORE = "rocket-rv64"
"""The core for which instructions are ordered: loops keep their sums in registers, which LLVM's
generic core makes spill (a third of the instructions of MNIST)."""

DETECTION = Detection(
    "declare i64 @getauxval(i64)\n",
    """
  %wide16 = call i64 @getauxval(i64 16)
  %entry16 = trunc i64 %wide16 to i32
""",
    {"v": (("entry16", 1 << (ord("V") - ord("A"))),)},
)
"""Linux has a bit for each extension whose name is a letter."""


class ScalarDot(DotProduct):
    """Each element of a step is multiplied and added by an instruction of its own."""

    @property
    def elements(self) -> int:
        """Elements of a step."""
        return STEP_NBYTES // self.weights_dtype.itemsize

    @property
    def is_signed(self) -> bool:
        return True

    @property
    def mixes_pixels(self) -> bool:
        return False

    @property
    def multiplies_elements(self) -> bool:
        return True

    @property
    def operand_kind(self) -> Type:
        return vector(self.lanes, I16)

    def operand(self, b: Builder, row: Value) -> tuple[Value, ...]:
        """Each element at ``row`` in every lane of a vector."""
        element = bits_type(32 // self.elements)
        places = (b.at(row, i * STEP_NBYTES // self.elements) for i in range(self.elements))
        loaded = (self.to_words(b, element, b.load(element, place)) for place in places)
        return tuple(b.broadcast(self.lanes, I16, word) for word in loaded)

    def to_operand(self, b: Builder, quads: Value) -> tuple[Value, ...]:
        count = self.lanes * self.elements
        whole, part = (vector(n, bits_type(32 // self.elements)) for n in (count, self.lanes))
        if whole != self.bytes_kind:
            quads = b.cast("bitcast", self.bytes_kind, quads, whole)
        orders = (range(i, count, self.elements) for i in range(self.elements))
        return tuple(self.to_words(b, part, b.shuffle(whole, quads, "poison", o)) for o in orders)

    def to_words(self, b: Builder, kind: Type, elements: Value) -> Value:
        """Elements in 16 bits."""
        wide = kind.with_element(I16)
        if kind == wide:
            return elements
        return b.cast("sext" if self.is_signed else "zext", kind, elements, wide)

    def weights(self, b: Builder, pointer: Value, offset: int) -> tuple[Value, ...]:
        vector_nbytes = self.weight_nbytes // self.elements
        places = (b.at(pointer, offset + i * vector_nbytes) for i in range(self.elements))
        return tuple(self.words_at(b, self.operand_kind, place) for place in places)

    def words_at(self, b: Builder, kind: Type, pointer: Value) -> Value:
        """A vector of packed weights as words."""
        return b.load(kind, pointer, align=4)

    def accumulate(
        self, b: Builder, sums: Value, operand: tuple[Value, ...], weights: tuple[Value, ...]
    ) -> Value:
        for x, w in zip(operand, weights, strict=True):
            wide = [b.cast("sext", self.operand_kind, v, self.kind) for v in (x, w)]
            sums = self.isa.keep(
                b, self.kind, b.op("add", self.kind, sums, b.op("mul", self.kind, *wide))
            )
        return sums

    def pack(self, quads: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(quads, -1, -2))


@dataclass(frozen=True)
class ScalarBytes(ScalarDot, WidenedDot):
    """Four bytes, widened to 16 bits, and weights that are widened when they are loaded."""

    def words_at(self, b: Builder, kind: Type, pointer: Value) -> Value:
        return WidenedDot.words_at(self, b, kind, pointer)

    @property
    def is_signed(self) -> bool:
        return self.signed


class ScalarWords(ScalarDot):
    """Two int16."""

    @property
    def weights_dtype(self) -> np.dtype[np.int16]:
        return np.dtype(np.int16)


class RiscVScalars(Portable):
    """Integers and floats one by one; LLVM unrolls vectors."""

    def keep(self, b: Builder, kind: Type, value: Value) -> Value:
        """An identity that LLVM cannot look through, lane by lane."""
        return self._each(b, kind, value, self._keep_element, I32)

    def _keep_element(self, b: Builder, value: Value) -> Value:
        return b.in_register(value, "r")

    def dot_product(self, x: DType, core: Core) -> DotProduct:
        if x is DType.F32:
            return FloatDot(self, StepCost(self.registers, operands=0, core=core))
        cost = self._step_cost(core)
        if x is DType.I16:
            return ScalarWords(self, cost)
        return ScalarBytes(self, cost, signed=x is not DType.U8)

    def _step_cost(self, core: Core) -> StepCost:
        """Instructions of a step: a product and a sum for each byte and channel, a load for each
        byte of a pixel, and one for each weight."""
        lanes = self.vector_nbytes // 4
        finish = (8.0 * lanes,) * 3
        scalar_core = replace(core, weights=4.0 * lanes, far_weights=4.0 * lanes, finish=finish)
        scalar_core = replace(scalar_core, latency=0.0, overlap=0.0)
        return StepCost(self.registers, 8.0 * lanes, 4.0, operands=0, core=scalar_core)

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fmax`` takes the number of two operands, so NaN becomes the least integer."""
        kind = vector(lanes, FLOAT)
        least = (kind, splat(kind, f32(LEAST)))
        name = f"llvm.maximumnum.{vector(lanes, FLOAT).suffix}"
        return self.round_number(b, lanes, b.call(name, kind, (kind, value), least))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvt.w.s``, which saturates, although LLVM leaves open what it does beyond int32; its
        ``lrint`` has 64 bits here."""
        if lanes > 1:
            return self._each(b, vector(lanes, FLOAT), value, self._rounded, I32)
        return self._rounded(b, value)

    def _rounded(self, b: Builder, value: Value) -> Value:
        whole = b.call("llvm.roundeven.f32", FLOAT, (FLOAT, value))
        return b.cast("fptosi", FLOAT, whole, I32)

    def _each(
        self,
        b: Builder,
        kind: Type,
        value: Value,
        function: Callable[[Builder, Value], Value],
        element: Type,
    ) -> Value:
        """A function of single lanes, whose values are of type ``element``."""
        result: Value = poison(kind.with_element(element))
        for lane in range(kind.lanes):
            result = b.insert(result, function(b, b.extract(value, lane)), lane)
        return result


@dataclass(frozen=True)
class RiscVVectors(RiscVScalars):
    """Groups of vector registers of 128 bits, of fixed width: code runs on wider registers, too."""

    def keep(self, b: Builder, kind: Type, value: Value) -> Value:
        return value

    def _step_cost(self, core: Core) -> StepCost:
        """A multiplication for each byte of a step; a ``vsext`` for each byte of its weights, which
        pixels share: tiles of many pixels and one vector need the fewest."""
        core = replace(core, weights=PRODUCT, far_weights=PRODUCT)
        return StepCost(self.registers, PRODUCT, 0.5, operands=0, loads=4.0, core=core)

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``vfcvt.x.f.v``; one value has the instruction of scalars."""
        if lanes == 1:
            return super().round_number(b, lanes, value)
        name = f"llvm.lrint.{vector(lanes, I32).suffix}.{vector(lanes, FLOAT).suffix}"
        return b.call(name, vector(lanes, I32), (vector(lanes, FLOAT), value))

    def _packed(
        self,
        b: Builder,
        elements: tuple[Type, Type],
        values: tuple[Value, Value],
        limits: tuple[int, int],
    ) -> Value:
        """``vnclip`` of both vectors in one."""
        source, result = elements
        lanes = self.vector_nbytes * 8 // source.nbits
        value = b.shuffle(vector(lanes, source), *values, range(2 * lanes))
        kind = vector(2 * lanes, source)
        for name, limit in zip(("smax", "smin"), limits, strict=True):
            bound = (kind, splat(kind, str(limit)))
            value = b.call(f"llvm.{name}.v{2 * lanes}{source}", kind, (kind, value), bound)
        return b.cast("trunc", kind, value, vector(2 * lanes, result))


def refusal() -> str:
    """Why no level is loaded into a process."""
    return "code for RISC-V is only made for bundles"


LEVELS = (
    Level(
        "rv64gcv",
        CORE,
        f"{FEATURES},+v",
        RiscVVectors(64, 8, unsigned_activations=False, has_fma=True),
        ("v",),
        refusal,
    ),
    Level(
        "rv64gc",
        CORE,
        FEATURES,
        RiscVScalars(16, 6, unsigned_activations=False, has_fma=True, limits_floats=True),
        refusal=refusal,
    ),
)

FAMILY = TargetFamily(
    TRIPLE,
    LEVELS,
    tune,
    settings=Settings(codemodel="medium", abi="lp64d"),
    detection=DETECTION,
)
