"""The instruction sets of RISC-V 64, with and without vectors.

Conversions of float32 to int32 saturate, and make the greatest integer of NaN.  A
vector is rounded as the thread rounds: to the nearest, half to even, which no kernel changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.costs import Core, StepCost
from quantglow.backends.llvm.isa.dot import DotProduct, FloatDot
from quantglow.backends.llvm.isa.portable import Portable
from quantglow.backends.llvm.isa.riscv.dot import ScalarBytes, ScalarWords
from quantglow.types import DType

LEAST = -(2.0**31)
PRODUCT = 2.0
"""Cycles of four multiplications of vectors, or of as many conversions."""


class Scalars(Portable):
    """Integers and floats one by one; LLVM unrolls vectors."""

    def keep(self, b: Builder, kind: str, value: Value) -> Value:
        """An identity that LLVM cannot look through, lane by lane."""
        return self._each(b, kind, value, self._kept, "i32")

    def _kept(self, b: Builder, value: Value) -> Value:
        return b.emit(f'call i32 asm "", "=r,0"(i32 {value})')

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
        own = replace(core, weights=4.0 * lanes, far_weights=4.0 * lanes, finish=finish)
        own = replace(own, latency=0.0, overlap=0.0)
        return StepCost(self.registers, 8.0 * lanes, 4.0, operands=0, core=own)

    def round_to_int(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fmax`` takes the number of two operands, so NaN becomes the least integer."""
        kind = vector(lanes, "float")
        least = (kind, splat(kind, f32(LEAST)))
        name = f"llvm.maximumnum.{suffix(lanes, 'f32')}"
        return self.round_number(b, lanes, b.call(name, kind, (kind, value), least))

    def round_number(self, b: Builder, lanes: int, value: Value) -> Value:
        """``fcvt.w.s``, which saturates, although LLVM leaves open what it does beyond int32; its
        ``lrint`` has 64 bits here."""
        if lanes > 1:
            return self._each(b, vector(lanes, "float"), value, self._rounded, "i32")
        return self._rounded(b, value)

    def _rounded(self, b: Builder, value: Value) -> Value:
        whole = b.call("llvm.roundeven.f32", "float", ("float", value))
        return b.cast("fptosi", "float", whole, "i32")

    def _each(
        self,
        b: Builder,
        kind: str,
        value: Value,
        function: Callable[[Builder, Value], Value],
        element: str,
    ) -> Value:
        """A function of single lanes, whose values are of type ``element``."""
        lanes, result = int(kind[1:].split()[0]), "poison"
        for lane in range(lanes):
            own = function(b, b.emit(f"extractelement {kind} {value}, i32 {lane}"))
            made = f"insertelement {vector(lanes, element)} {result}, {element} {own}, i32 {lane}"
            result = b.emit(made)
        return result


@dataclass(frozen=True)
class Vectors(Scalars):
    """Groups of vector registers of 128 bits, of fixed width: code runs on wider registers, too."""

    def keep(self, b: Builder, kind: str, value: Value) -> Value:
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
        name = f"llvm.lrint.{suffix(lanes, 'i32')}.{suffix(lanes, 'f32')}"
        return b.call(name, vector(lanes, "i32"), (vector(lanes, "float"), value))

    def _packed(
        self,
        b: Builder,
        elements: tuple[str, str],
        values: tuple[Value, Value],
        limits: tuple[int, int],
    ) -> Value:
        """``vnclip`` of both vectors in one."""
        source, result = elements
        lanes = self.vector_nbytes * 8 // int(source[1:])
        value = b.shuffle(vector(lanes, source), *values, range(2 * lanes))
        kind = vector(2 * lanes, source)
        for name, limit in zip(("smax", "smin"), limits, strict=True):
            bound = (kind, splat(kind, str(limit)))
            value = b.call(f"llvm.{name}.v{2 * lanes}{source}", kind, (kind, value), bound)
        return b.cast("trunc", kind, value, vector(2 * lanes, result))


def suffix(lanes: int, element: str) -> str:
    """LLVM's name of a type in the name of an intrinsic."""
    return element if lanes == 1 else f"v{lanes}{element}"
