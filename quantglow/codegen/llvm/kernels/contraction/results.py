"""Results of a contraction: rounded, limited and packed as they lie in memory.

Also the sums over the weights of each output channel, computed in little memory, and the proof that
scaled sums fit int32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantglow.codegen.llvm.builder import Builder
from quantglow.codegen.llvm.isa.dot import STEP_NBYTES
from quantglow.codegen.llvm.isa.target import Target
from quantglow.codegen.llvm.kernels.vector.vectors import (
    ELEMENTS,
    clip_float,
    quantize_steps,
)
from quantglow.codegen.llvm.values import FLOAT, I8, I16, I32, Type, Value, f32, splat, vector
from quantglow.ir.graph.node import Constant
from quantglow.ir.ops import Conv
from quantglow.ir.ops.arithmetic import integer_bounds, is_integer
from quantglow.ir.types import DType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property

CHUNK_ELEMENTS = 2**17
"""Weights that are widened at a time: a wide copy of all would be eight times their size."""

LARGEST_WEIGHT = 128
"""Maximum magnitude of int8 weights."""
LIMIT = 2.0**30
"""Bound of scaled sums that are far from the limits of int32, whatever roundings did."""


@dataclass(frozen=True)
class ContractionResults:
    """The results of one convolution on one target, from float32 sums."""

    op: Conv
    target: Target

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.target.f32_lanes

    @property
    def floats(self) -> Type:
        return vector(self.lanes, FLOAT)

    @property
    def ints(self) -> Type:
        return vector(self.lanes, I32)

    @property
    def words(self) -> Type:
        return vector(2 * self.lanes, I16)

    @property
    def dtype(self) -> DType:
        return self.op.type.dtype

    @property
    def element(self) -> Type:
        """The LLVM type of one result in memory."""
        return ELEMENTS[self.dtype]

    @property
    def joined(self) -> int:
        """Maximum number of vectors of sums whose results are stored together."""
        return STEP_NBYTES // self.dtype.nbytes

    @property
    def zero_point(self) -> int:
        return self.op.type.params.zero_point

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest result."""
        assert self.op.out is not None
        return integer_bounds(self.op.out, self.op.low, self.op.high)

    @cached_property
    def may_overflow(self) -> bool:
        """Whether steps might not fit int32."""
        return may_overflow(self.op)

    @property
    def is_requantized(self) -> bool:
        """Whether sums become rounded steps in integers."""
        op = self.op
        plain = op.residual is None and op.activation is None and op.out is not None
        return self.target.isa.requantizes_integers and plain and is_integer(op.x.type)

    # -- all of it

    def packed(self, b: Builder, values: list[Value]) -> Value:
        """One, two or four (``joined``) vectors of steps (or reals) as one vector of results."""
        if self.op.out is None:
            return self.limited_floats(b, values[0])
        if self.target.isa.limits_floats:
            return self._joined(b, [self._limited_steps(b, v) for v in values])
        if len(values) == 1:
            moved = self.steps(b, values[0])
            return b.cast("trunc", self.ints, moved, vector(self.lanes, self.element))
        words = [self.packed_words(b, values[i : i + 2]) for i in range(0, len(values), 2)]
        return self.joined_words(b, words)

    def steps(self, b: Builder, values: Value) -> Value:
        """A vector of float32 steps as int32 results."""
        return self._moved(b, self._rounded(b, values))

    def limited_floats(self, b: Builder, values: Value) -> Value:
        """Float results within their bounds; NaN stays."""
        for bound, predicate in ((self.op.low, "olt"), (self.op.high, "ogt")):
            if math.isfinite(bound):
                limit = splat(self.floats, f32(bound))
                outside = b.compare(predicate, self.floats, values, limit)
                values = b.select(self.floats, outside, limit, values)
        return values

    def packed_words(self, b: Builder, values: list[Value]) -> Value:
        """Two vectors of steps as one of 16-bit words; those too large for bytes saturate later."""
        x, y = (self._rounded(b, v) for v in values)
        if self.dtype is DType.I16 and self.zero_point:
            # Words have no room for a step that the zero point brings back into range.
            return self.target.isa.pack_words(b, self._moved(b, x), self._moved(b, y))
        return self._limited_words(b, self.target.isa.pack_words(b, x, y))

    def joined_words(self, b: Builder, words: list[Value]) -> Value:
        """One or two vectors of words as one vector of results, in order."""
        if len(words) == 1 and self.dtype is DType.I16:
            return words[0]
        if len(words) == 2 and self.dtype is DType.I16:
            return self._in_turn(b, words[0], words[1])
        if len(words) == 2:
            return self.target.isa.pack_bytes(b, words[0], words[1], self.dtype is DType.I8)
        small = self._within(b, self.words, words[0], *self.bounds)
        return b.cast("trunc", self.words, small, vector(2 * self.lanes, I8))

    def _joined(self, b: Builder, parts: list[Value]) -> Value:
        """One, two or four vectors of results as one."""
        lanes = self.lanes
        while len(parts) > 1:
            kind = vector(lanes, self.element)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            lanes *= 2
            parts = [b.shuffle(kind, x, y, range(lanes)) for x, y in pairs]
        return parts[0]

    # -- steps

    def _limited_steps(self, b: Builder, values: Value) -> Value:
        """Results from steps that are limited before they are rounded."""
        steps = quantize_steps(b, self.target, self.lanes, values, *self.bounds, self.zero_point)
        return b.cast("trunc", self.ints, steps, vector(self.lanes, self.element))

    def _rounded(self, b: Builder, values: Value) -> Value:
        """Steps as int32, too large ones beyond the bounds."""
        if self.is_requantized:
            return values
        if self.may_overflow and self.op.activation is not None:
            # Infinite sums may give NaN, which is the lowest integer.
            limits = (bound - self.zero_point for bound in self.bounds)
            values = clip_float(b, self.lanes, values, *limits)
        elif self.may_overflow:
            limit = splat(self.floats, f32(self.bounds[1] - self.zero_point))
            inside = b.compare("olt", self.floats, values, limit)
            values = b.select(self.floats, inside, values, limit)
        return self.target.isa.round_number(b, self.lanes, values)

    def _moved(self, b: Builder, ints: Value) -> Value:
        """Rounded steps within the bounds, plus the zero point."""
        # Limits first: adding the zero point to an extreme sum could wrap.
        low, high = (bound - self.zero_point for bound in self.bounds)
        ints = self._within(b, self.ints, ints, low, high)
        return b.op("add", self.ints, ints, splat(self.ints, str(self.zero_point)))

    def _limited_words(self, b: Builder, words: Value) -> Value:
        kind = self.words
        if self.zero_point:
            other = (kind, splat(kind, str(self.zero_point)))
            words = b.call(f"llvm.sadd.sat.v{2 * self.lanes}i16", kind, (kind, words), other)
        if self.bounds != self.dtype.limits:
            words = self._within(b, kind, words, *self.bounds)
        return words

    def _within(self, b: Builder, kind: Type, value: Value, low: int, high: int) -> Value:
        """Integers limited to ``[low, high]``."""
        lanes, element = (self.lanes, I32) if kind == self.ints else (2 * self.lanes, I16)
        for name, bound in (("smax", low), ("smin", high)):
            other = (kind, splat(kind, str(bound)))
            value = b.call(
                f"llvm.{name}.{vector(lanes, element).suffix}", kind, (kind, value), other
            )
        return value

    def _in_turn(self, b: Builder, x: Value, y: Value) -> Value:
        """The groups of two vectors in turn: the order that packing bytes would leave."""
        count, group = self.lanes * 2, self.target.isa.group_nbytes // 2
        order = [
            start + other + i
            for start in range(0, count, group)
            for other in (0, count)
            for i in range(group)
        ]
        return b.shuffle(self.words, x, y, order)


def channel_sums(w: Array, magnitudes: bool = False) -> Array:
    """int64 [O]: integer weights [..., O], or their magnitudes, added for each output channel."""
    rows = w.reshape(-1, w.shape[-1])
    step = max(1, CHUNK_ELEMENTS // max(1, rows.shape[1]))
    total = np.zeros(rows.shape[1], np.int64)
    for start in range(0, len(rows), step):
        wide = rows[start : start + step].astype(np.int32)
        total += (np.abs(wide) if magnitudes else wide).sum(axis=0, dtype=np.int64)
    return total


def may_overflow(op: Conv) -> bool:
    """Whether a scaled sum might not fit int32, for any input of the convolution's type."""
    assert isinstance(op.w, Constant)
    w = op.w.value
    if op.activation is None and not _may_exceed(op, LARGEST_WEIGHT * w[..., 0].size):
        return False  # Most networks: no look at each weight.
    return _may_exceed(op, channel_sums(w, magnitudes=True))


def _may_exceed(op: Conv, magnitudes: Array | int) -> bool:
    """``may_overflow`` with weights of these magnitudes, added for each channel."""
    assert isinstance(op.b, Constant)
    largest = _largest_code(op.x.type) * np.asarray(magnitudes, np.float64)
    largest = largest + np.abs(op.b.value.astype(np.float64))
    bound = float((largest * multipliers(op)).max(initial=0.0))
    if op.residual is not None:
        kind = op.residual.type
        bound += _largest_code(kind) * kind.params.scale / op.sum_step
    if op.activation is not None:
        bound = op.activation.reach(bound, op.type.params.scale)
    return not bound < LIMIT


def multipliers(op: Conv) -> Array:
    """float32 [O]: from sums to steps of the result (or reals)."""
    scale = np.asarray(op.accumulator_scale(), np.float32)
    return np.broadcast_to(scale, (int(op.type.shape[-1]),))


def _largest_code(kind: TensorType) -> float:
    """The largest distance of an integer from the zero point."""
    low, high = kind.dtype.limits
    return float(max(high - kind.params.zero_point, kind.params.zero_point - low))
