"""The end of a contraction: sums to results, in registers.

Integer sums become float32, times their channel's multiplier, plus the residual; one rounding;
zero point; saturation.  Four (two) vectors of sums are packed to one vector of bytes by
instructions that interleave 128-bit lanes, so weights are packed in the channel order that comes
out right: see ``channel_order``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.kernels.tiling import groups
from quantglow.backends.llvm.kernels.vectors import round_to_int
from quantglow.backends.llvm.kernels.weight_sums import channel_sums
from quantglow.backends.llvm.target import Target
from quantglow.errors import BackendError
from quantglow.ops import Conv
from quantglow.ops.arithmetic import integer_bounds, is_integer, multiplier
from quantglow.types import Array, DType

LANE = 4
"""int32 elements of a 128-bit lane."""


@cache
def channel_order(lanes: int, vectors: int, packed: bool) -> Array:
    """int [vectors, lanes]: the channel (within a panel) that each lane of each vector holds."""
    order = np.empty((vectors, lanes), np.int64)
    first = 0
    for size in groups(vectors) if packed else [1] * vectors:
        lane, within = np.divmod(np.arange(lanes), LANE)
        for v in range(size):
            channels = lane * LANE * size + v * LANE + within if size > 1 else np.arange(lanes)
            order[first + v] = first * lanes + channels
        first += size
    order.setflags(write=False)
    return order


@dataclass(frozen=True)
class Epilogue:
    """How the sums of one Conv are finished on one target."""

    op: Conv
    target: Target

    @property
    def lanes(self) -> int:
        return self.target.f32_lanes

    @property
    def floats(self) -> str:
        return vector(self.lanes, "float")

    @property
    def ints(self) -> str:
        return vector(self.lanes, "i32")

    @property
    def packed(self) -> bool:
        """Whether results are bytes."""
        return self.op.out is not None

    @property
    def element_nbytes(self) -> int:
        return self.op.type.dtype.nbytes

    @property
    def scaled(self) -> bool:
        """Whether sums are integers that need a multiplier for each channel."""
        return is_integer(self.op.x.type)

    def check(self) -> None:
        """Raise ``BackendError`` for element types this epilogue does not store."""
        residual = self.op.residual
        if self.packed and self.op.type.dtype is not DType.U8:
            raise BackendError(f"{self.op!r}: results of {self.op.type.dtype} are not supported")
        if residual is not None and is_integer(residual.type) != self.packed:
            raise BackendError(f"{self.op!r}: the residual and the result differ in precision")

    def multipliers(self) -> Array:
        """float32 [O]"""
        scale = np.asarray(self.op.accumulator_scale(), np.float32)
        return np.broadcast_to(scale, (self.op.type.shape[-1],))

    @cached_property
    def may_overflow(self) -> bool:
        """Whether a scaled sum might not fit int32 (the conversion would give its minimum)."""
        w, b = self.op.w, self.op.b
        assert w is not None and b is not None
        largest = 255.0 * channel_sums(w.value, magnitudes=True)  # type: ignore[attr-defined]
        largest += np.abs(b.value.astype(np.float64))  # type: ignore[attr-defined]
        bound = float((largest * self.multipliers()).max(initial=0.0))
        if self.op.residual is not None:
            bound += 255.0 * self.op.residual.type.params.scale / self.op.type.params.scale
        return not bound < 2.0**30

    # -- code

    def values(
        self, b: Builder, sums: Value, multiplier_pointer: Value, residual: Value | None
    ) -> Value:
        """Sums as float32 in output steps (or reals), residual added."""
        result = sums
        if self.scaled:
            scale = b.load(self.floats, multiplier_pointer, align=4)
            result = self.scaled_sums(b, sums, scale)
        if residual is not None:
            result = b.op("fadd", self.floats, result, residual)
        return result

    def scaled_sums(self, b: Builder, sums: Value, scale: Value) -> Value:
        """``float32(sums) * scale``"""
        return b.op("fmul", self.floats, b.cast("sitofp", self.ints, sums, self.floats), scale)

    def float_results(self, b: Builder, values: Value) -> Value:
        """Float results within their bounds; NaN stays."""
        for bound, predicate in ((self.op.low, "olt"), (self.op.high, "ogt")):
            if math.isfinite(bound):
                limit = splat(self.floats, f32(bound))
                outside = b.compare(predicate, self.floats, values, limit)
                values = b.select(self.floats, outside, limit, values)
        return values

    def byte_results(self, b: Builder, values: list[Value]) -> Value:
        """One, two or four vectors of steps as one vector of unsigned bytes."""
        if len(values) == 1:
            return self._narrow_one(b, values[0])
        words = [self.word_results(b, values[i : i + 2]) for i in range(0, len(values), 2)]
        if len(words) == 2:
            return self.joined_words(b, *words)
        kind = vector(self.lanes * 2, "i16")
        small = self._limit(b, kind, "i16", words[0], *self.bounds)
        return b.cast("trunc", kind, small, vector(self.lanes * 2, "i8"))

    def word_results(self, b: Builder, values: list[Value]) -> Value:
        """Two vectors of steps as one of 16-bit words; too large ones saturate later."""
        return self._clamp_words(b, self._pack_words(b, *(self._round(b, v) for v in values)))

    @property
    def zero_point(self) -> int:
        return self.op.type.params.zero_point

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest result."""
        assert self.op.out is not None
        return integer_bounds(self.op.out, self.op.low, self.op.high)

    def _round(self, b: Builder, values: Value) -> Value:
        if self.may_overflow:
            limit = splat(self.floats, f32(self.bounds[1] - self.zero_point))
            inside = b.compare("olt", self.floats, values, limit)
            values = b.select(self.floats, inside, values, limit)
        return round_to_int(b, self.target, self.lanes, values)

    def _narrow_one(self, b: Builder, values: Value) -> Value:
        # Clamp first: adding the zero point to an extreme sum could wrap.
        low, high = (bound - self.zero_point for bound in self.bounds)
        ints = self._limit(b, self.ints, "i32", self._round(b, values), low, high)
        moved = b.op("add", self.ints, ints, f"splat (i32 {self.zero_point})")
        return b.cast("trunc", self.ints, moved, vector(self.lanes, "i8"))

    def _limit(self, b: Builder, kind: str, element: str, v: Value, low: int, high: int) -> Value:
        suffix = f"v{kind[1:].split(' ')[0]}{element}"
        v = b.call(f"llvm.smax.{suffix}", kind, (kind, v), (kind, f"splat ({element} {low})"))
        return b.call(f"llvm.smin.{suffix}", kind, (kind, v), (kind, f"splat ({element} {high})"))

    def _clamp_words(self, b: Builder, words: Value) -> Value:
        kind, lanes = vector(self.lanes * 2, "i16"), self.lanes * 2
        if self.zero_point:
            other = f"splat (i16 {self.zero_point})"
            words = b.call(f"llvm.sadd.sat.v{lanes}i16", kind, (kind, words), (kind, other))
        if self.bounds != (0, 255):
            words = self._limit(b, kind, "i16", words, *self.bounds)
        return words

    def _pack_words(self, b: Builder, x: Value, y: Value) -> Value:
        name = {16: "sse2.packssdw.128", 32: "avx2.packssdw", 64: "avx512.packssdw.512"}
        kind = vector(self.lanes * 2, "i16")
        return b.call(
            f"llvm.x86.{name[self.target.vector_nbytes]}", kind, (self.ints, x), (self.ints, y)
        )

    def joined_words(self, b: Builder, x: Value, y: Value) -> Value:
        """Two vectors of words as one of unsigned bytes, saturating."""
        name = {16: "sse2.packuswb.128", 32: "avx2.packuswb", 64: "avx512.packuswb.512"}
        words, result = vector(self.lanes * 2, "i16"), vector(self.lanes * 4, "i8")
        return b.call(f"llvm.x86.{name[self.target.vector_nbytes]}", result, (words, x), (words, y))

    # -- residual

    def residual_steps(self, b: Builder, data: Value, count: int) -> list[Value]:
        """``count`` vectors of residual steps from a vector of ``count * lanes`` bytes, in
        ``channel_order``."""
        assert self.op.residual is not None
        params = self.op.residual.type.params
        ratio = float(multiplier(params.scale, divisor=self.op.type.params.scale))
        steps = []
        for index in range(count):
            ints = self._spread(b, data, count, index)
            moved = b.op("sub", self.ints, ints, f"splat (i32 {params.zero_point})")
            floats = b.cast("sitofp", self.ints, moved, self.floats)
            steps.append(b.op("fmul", self.floats, floats, splat(self.floats, f32(ratio))))
        return steps

    def _spread(self, b: Builder, data: Value, count: int, index: int) -> Value:
        """The bytes that belong to vector ``index`` of a group, widened to int32."""
        order = channel_order(self.lanes, count, packed=True)[index]
        kind = vector(count * self.lanes, "i8")
        picked = b.shuffle(kind, data, "poison", [int(c) for c in order])
        return b.cast("zext", vector(self.lanes, "i8"), picked, self.ints)
