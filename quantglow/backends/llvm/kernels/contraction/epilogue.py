"""The end of a contraction: sums to results, in registers.

Integer sums become float32, times their channel's multiplier, plus the residual; an activation in
float32; one rounding; zero point; saturation.  Vectors of sums are packed to one vector of results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantglow.backends.llvm.builder import Builder, Value, f32, splat, vector
from quantglow.backends.llvm.isa.dot import STEP_NBYTES
from quantglow.backends.llvm.isa.target import Target
from quantglow.backends.llvm.kernels.contraction.channel_order import channel_order
from quantglow.backends.llvm.kernels.contraction.weight_sums import channel_sums
from quantglow.backends.llvm.kernels.vector.scalars import Scalars
from quantglow.backends.llvm.kernels.vector.vectors import ELEMENTS, clip_float, widen
from quantglow.errors import BackendError
from quantglow.graph.node import Constant
from quantglow.lazy import cached_property
from quantglow.ops import Conv
from quantglow.ops.activation import X
from quantglow.ops.arithmetic import integer_bounds, is_integer, multiplier
from quantglow.ops.expression import Expr
from quantglow.types import Array, DType, TensorType

LARGEST_WEIGHT = 128
"""Of int8 weights, in magnitude."""


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
    def dtype(self) -> DType:
        """Of results."""
        return self.op.type.dtype

    @property
    def element(self) -> str:
        """The LLVM type of one result in memory."""
        return ELEMENTS[self.dtype]

    @property
    def joined(self) -> int:
        """How many vectors of results are stored together at most."""
        return STEP_NBYTES // self.dtype.nbytes

    @property
    def scaled(self) -> bool:
        """Whether sums are integers that need a multiplier for each channel."""
        return is_integer(self.op.x.type)

    def check(self) -> None:
        """Raise ``BackendError`` for element types this epilogue does not store."""
        residual = self.op.residual
        if self.op.out is not None and self.dtype not in (DType.U8, DType.I8, DType.I16):
            raise BackendError(f"{self.op!r}: results of {self.dtype} are not supported")
        if residual is not None and is_integer(residual.type) != (self.op.out is not None):
            raise BackendError(f"{self.op!r}: the residual and the result differ in precision")

    def channel_order(self, vectors: int) -> Array:
        """int [vectors, lanes]: the channel (within a panel) of each lane of each vector."""
        return channel_order(self.target.isa, vectors, self.joined)

    def multipliers(self) -> Array:
        """float32 [O]"""
        scale = np.asarray(self.op.accumulator_scale(), np.float32)
        return np.broadcast_to(scale, (self.op.type.shape[-1],))

    @property
    def facts(self) -> str:
        """All that code around this epilogue depends on of the values of constants and of the
        parameters of quantization: others are operands.
        """
        if self.op.out is None:
            return ""
        step = None if self.op.activation is None else self.op.type.params.scale
        return f"{self.may_overflow} {self.bounds} {self.zero_point} {step}"

    @cached_property
    def may_overflow(self) -> bool:
        """Whether a scaled sum might not fit int32 (the conversion would give its minimum)."""
        assert isinstance(self.op.w, Constant)
        w = self.op.w.value
        if self.op.activation is None and not self._may_exceed(LARGEST_WEIGHT * w[..., 0].size):
            return False  # Most networks: no look at each weight.
        return self._may_exceed(channel_sums(w, magnitudes=True))

    def _may_exceed(self, magnitudes: Array | int) -> bool:
        """``may_overflow`` with weights of these magnitudes, added for each channel."""
        assert isinstance(self.op.b, Constant)
        largest = largest_code(self.op.x.type) * np.asarray(magnitudes, np.float64)
        largest = largest + np.abs(self.op.b.value.astype(np.float64))
        bound = float((largest * self.multipliers()).max(initial=0.0))
        if self.op.residual is not None:
            kind = self.op.residual.type
            bound += largest_code(kind) * kind.params.scale / self.op.sum_step
        if self.op.activation is not None:
            bound = self.op.activation.reach(bound, self.op.type.params.scale)
        return not bound < 2.0**30

    # -- code

    def values(self, b: Builder, sums: Value, scale: Value, residual: Value | None) -> Value:
        """Sums as float32 in output steps (or reals): times ``scale`` if there is one, plus the
        residual, through the activation."""
        result = sums
        if self.scaled:
            floats = b.cast("sitofp", self.ints, sums, self.floats)
            result = b.op("fmul", self.floats, floats, scale)
        if residual is not None:
            result = b.op("fadd", self.floats, result, residual)
        return result if self.op.activation is None else self._activated(b, result)

    def _activated(self, b: Builder, sums: Value) -> Value:
        """The activation of float32 sums, in output steps (or reals)."""
        assert self.op.activation is not None
        step = None if self.op.out is None else self.op.type.params.scale
        expression = self.op.activation.expression(step)
        scalars = Scalars(b, self.target, self.lanes, [sums], [DType.F32])
        if near := limited_factor(expression):
            bound = splat(self.floats, f32(near.args[1].value))
            if limited := self.target.isa.nearest_within(b, sums, bound):
                scalars.done[near] = limited
        return scalars.value(expression)

    def float_results(self, b: Builder, values: Value) -> Value:
        """Float results within their bounds; NaN stays."""
        for bound, predicate in ((self.op.low, "olt"), (self.op.high, "ogt")):
            if math.isfinite(bound):
                limit = splat(self.floats, f32(bound))
                outside = b.compare(predicate, self.floats, values, limit)
                values = b.select(self.floats, outside, limit, values)
        return values

    def results(self, b: Builder, values: list[Value]) -> Value:
        """One, two or four (``joined``) vectors of steps (or reals) as one vector of results."""
        if self.op.out is None:
            return self.float_results(b, values[0])
        if len(values) == 1:
            return self._narrow_one(b, values[0])
        words = [self.word_results(b, values[i : i + 2]) for i in range(0, len(values), 2)]
        return self.joined_words(b, words)

    def word_results(self, b: Builder, values: list[Value]) -> Value:
        """Two vectors of steps as one of 16-bit words; those too large for bytes saturate later."""
        ints = [self._round(b, v) for v in values]
        if self.dtype is DType.I16 and self.zero_point:
            # Words have no room for a step that the zero point brings back into range.
            ints = [self._moved(b, v) for v in ints]
            return self.target.isa.pack_words(b, *ints)
        return self._clamp_words(b, self.target.isa.pack_words(b, *ints))

    @property
    def zero_point(self) -> int:
        return self.op.type.params.zero_point

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest result."""
        assert self.op.out is not None
        return integer_bounds(self.op.out, self.op.low, self.op.high)

    def _round(self, b: Builder, values: Value) -> Value:
        if self.may_overflow and self.op.activation is not None:
            # Infinite sums may give NaN, which is the lowest integer.
            limits = (bound - self.zero_point for bound in self.bounds)
            values = clip_float(b, self.lanes, values, *limits)
        elif self.may_overflow:
            limit = splat(self.floats, f32(self.bounds[1] - self.zero_point))
            inside = b.compare("olt", self.floats, values, limit)
            values = b.select(self.floats, inside, values, limit)
        return self.target.isa.round_to_int(b, self.lanes, values)

    def _narrow_one(self, b: Builder, values: Value) -> Value:
        moved = self._moved(b, self._round(b, values))
        return b.cast("trunc", self.ints, moved, vector(self.lanes, self.element))

    def _moved(self, b: Builder, ints: Value) -> Value:
        """Rounded steps within the bounds, plus the zero point."""
        # Clamp first: adding the zero point to an extreme sum could wrap.
        low, high = (bound - self.zero_point for bound in self.bounds)
        ints = self._limit(b, self.ints, "i32", ints, low, high)
        return b.op("add", self.ints, ints, f"splat (i32 {self.zero_point})")

    def _limit(self, b: Builder, kind: str, element: str, v: Value, low: int, high: int) -> Value:
        suffix = f"v{kind[1:].split(' ')[0]}{element}"
        v = b.call(f"llvm.smax.{suffix}", kind, (kind, v), (kind, f"splat ({element} {low})"))
        return b.call(f"llvm.smin.{suffix}", kind, (kind, v), (kind, f"splat ({element} {high})"))

    def _clamp_words(self, b: Builder, words: Value) -> Value:
        kind, lanes = vector(self.lanes * 2, "i16"), self.lanes * 2
        if self.zero_point:
            other = f"splat (i16 {self.zero_point})"
            words = b.call(f"llvm.sadd.sat.v{lanes}i16", kind, (kind, words), (kind, other))
        if self.bounds != self.dtype.limits:
            words = self._limit(b, kind, "i16", words, *self.bounds)
        return words

    def joined_words(self, b: Builder, words: list[Value]) -> Value:
        """One or two vectors of words as one vector of results, in order."""
        if len(words) == 1:
            return words[0] if self.dtype is DType.I16 else self._narrow_words(b, words[0])
        if self.dtype is DType.I16:
            return self._interleaved(b, *words)
        return self.target.isa.pack_bytes(b, words[0], words[1], self.dtype is DType.I8)

    def _narrow_words(self, b: Builder, words: Value) -> Value:
        kind = vector(self.lanes * 2, "i16")
        small = self._limit(b, kind, "i16", words, *self.bounds)
        return b.cast("trunc", kind, small, vector(self.lanes * 2, "i8"))

    def _interleaved(self, b: Builder, x: Value, y: Value) -> Value:
        """The groups of two vectors in turn: the order that packing bytes would leave."""
        count, lane = self.lanes * 2, self.target.isa.group_nbytes // 2
        order = [
            start + other + i
            for start in range(0, count, lane)
            for other in (0, count)
            for i in range(lane)
        ]
        return b.shuffle(vector(count, "i16"), x, y, order)

    # -- residual

    @property
    def reads_residual_params(self) -> bool:
        """Whether ``residual_params`` are an operand of the kernel."""
        return self.op.residual is not None and is_integer(self.op.residual.type)

    def residual_params(self) -> tuple[Array, ...]:
        """The residual's zero point and its step in steps of the float32 sum, a vector of each as
        int32 [2, lanes], where it is quantized.  As literals they would make a kernel for each
        layer.
        """
        if not self.reads_residual_params:
            return ()
        assert self.op.residual is not None
        params = self.op.residual.type.params
        ratio = multiplier(params.scale, divisor=self.op.sum_step)
        both = np.array([params.zero_point, ratio.view(np.int32)], np.int32)
        return (np.repeat(both[:, None], self.lanes, axis=1),)

    def residual_steps(self, b: Builder, data: Value, count: int, params: Value) -> list[Value]:
        """``count`` vectors of residual, in steps of the float32 sum, from a vector of
        ``count * lanes`` integers, in ``channel_order``; ``params``: pointer to those."""
        nbytes = self.target.vector_nbytes
        ratio_at = b.at(params, nbytes)
        steps = []
        for index in range(count):
            ints = self._spread(b, data, count, index)
            zero_point = b.load(self.ints, params, align=nbytes)
            moved = b.op("sub", self.ints, ints, zero_point)
            floats = b.cast("sitofp", self.ints, moved, self.floats)
            ratio = b.load(self.floats, ratio_at, align=nbytes)
            steps.append(b.op("fmul", self.floats, floats, ratio))
        return steps

    def _spread(self, b: Builder, data: Value, count: int, index: int) -> Value:
        """The integers that belong to vector ``index`` of a group, widened to int32."""
        assert self.op.residual is not None
        dtype = self.op.residual.type.dtype
        order = self.channel_order(count)[index]
        kind = vector(count * self.lanes, ELEMENTS[dtype])
        picked = b.shuffle(kind, data, "poison", [int(c) for c in order])
        return widen(b, self.lanes, ELEMENTS[dtype], picked, dtype is not DType.U8)


def limited_factor(expr: Expr) -> Expr | None:
    """``min(max($0, -c), c)`` within a factor of a product with ``$0``.  There it may be c for NaN:
    the product is NaN anyway."""
    if expr.op == "mul" and expr.args[0] == X:
        return next(filter(_is_symmetric, expr.args[1].parts()), None)
    return next(filter(None, map(limited_factor, expr.args)), None)


def _is_symmetric(expr: Expr) -> bool:
    match expr:
        case Expr("min", (Expr("max", (x, Expr("f", value=low))), Expr("f", value=high))):
            return x == X and low == -high
    return False


def largest_code(kind: TensorType) -> float:
    """The largest distance of an integer from the zero point."""
    low, high = kind.dtype.limits
    return float(max(high - kind.params.zero_point, kind.params.zero_point - low))
