"""Normalizations over channels or rows.  Channels are the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import CODES, REALS, Kind, Trait, taking
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.arithmetic import dequantize, is_integer, multiplier, quantize, saturate
from quantglow.ir.ops.functions import row_sum, shrinking_power
from quantglow.ir.ops.samples import if_rows
from quantglow.ir.ops.windows import LARGEST_WINDOW
from quantglow.ir.symbolic.size import Shape, decide, decide_equal, likely
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array


def _keeps_last(perm: tuple[int, ...]) -> bool:
    """Whether the last axis stays the last."""
    return perm[-1] == len(perm) - 1


@op
class BatchNormalization(Node):
    """``(x - mean) / sqrt(var + epsilon) * gamma + beta`` per channel (last axis); float."""

    x: Node
    gamma: Node
    beta: Node
    mean: Node
    var: Node
    epsilon: float = 1e-5

    takes = taking(x=Kind.FLOAT, gamma=Kind.FLOAT, beta=Kind.FLOAT, mean=Kind.FLOAT, var=Kind.FLOAT)

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        return {} if _keeps_last(perm) else None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    def infer(self) -> TensorType:
        channels = self.x.type.shape[-1:]
        if not all(
            decide_equal(p.type.shape, channels)
            for p in (self.gamma, self.beta, self.mean, self.var)
        ):
            raise self.refuse(f"every parameter must have shape {channels}")
        return self.x.type

    def reference(self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
        scale = gamma / np.sqrt(var + np.float32(self.epsilon))
        return np.asarray((x - mean) * scale + beta)


@op
class LayerNormalization(Node):
    """``(x - mean) / sqrt(var + epsilon) * gamma + beta`` along the last axis.

    ``gamma`` and ``beta``, one float for each element of the axis, are 1 and 0 where they are
    absent.  Sums have the order of ``row_sum``, so that every target gives the same floats.

    Quantized: the float32 steps on the reals of ``x``, rounded once.
    """

    x: Node
    gamma: Node | None = None
    beta: Node | None = None
    epsilon: float = 1e-5
    out: ElementType | None = None

    takes = taking(x=REALS, out=CODES)
    traits = frozenset({Trait.SERVES_READERS})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        return {} if _keeps_last(perm) else None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    def infer(self) -> TensorType:
        if self.x.type.rank < 1:
            raise self.refuse("x must have an axis")
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        expected = TensorType(DType.F32, self.x.type.shape[-1:])
        if any(p is not None and p.type != expected for p in (self.gamma, self.beta)):
            raise self.refuse(f"gamma and beta must be {expected}")
        return self.x.type if self.out is None else self.x.type.with_element(self.out)

    def reference(self, x: Array, gamma: Array | None, beta: Array | None) -> Array:
        if self.out is not None:
            x = dequantize(x, self.x.type.params)
        length = np.float32(x.shape[-1])
        centered = x - row_sum(x) / length
        var = row_sum(centered * centered) / length
        y = centered * (np.float32(1) / np.sqrt(var + np.float32(self.epsilon)))
        y = y if gamma is None else y * gamma
        y = np.asarray(y if beta is None else y + beta)
        return y if self.out is None else quantize(y, self.out)


@op
class LRN(Node):
    """``x / (bias + alpha/size * sum of squares over size neighboring channels) ** beta``."""

    x: Node
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    takes = taking(x=Kind.FLOAT)

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        return {} if _keeps_last(perm) else None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return {}

    @property
    def table_entries(self) -> int:
        """The places of a pool over the channels."""
        return likely(self.x.type.shape[-1]) * self.size

    def infer(self) -> TensorType:
        if self.x.type.rank < 2:
            raise self.refuse("x has no channels")
        if not 0 < self.size <= LARGEST_WINDOW:
            raise self.refuse(f"size {self.size} is not from 1 to {LARGEST_WINDOW}")
        return self.x.type

    def reference(self, x: Array) -> Array:
        before = (self.size - 1) // 2
        widths = [(0, 0)] * (x.ndim - 1) + [(before, self.size - 1 - before)]
        squares = np.pad(x * x, widths)
        windows = np.lib.stride_tricks.sliding_window_view(squares, self.size, axis=-1)
        sums = windows.sum(axis=-1, dtype=np.float32)
        base = np.float32(self.bias) + np.float32(self.alpha / self.size) * sums
        return np.asarray(x / base ** np.float32(self.beta))


@op
class Softmax(Node):
    """``exp(x - max) / sum`` along the last axis.

    Floats: in the steps of ``shrinking_power`` and ``row_sum``, which all targets take.

    Quantized: ``exp`` is a table of 256 integers with as many bits as keep the sum of a row
    within int32; the sum is exact, the quotient and its rounding are single float32 steps.
    """

    x: Node
    out: ElementType | None = None

    takes = taking(x=Kind.FLOAT | Kind.BYTE, out=CODES)
    traits = frozenset({Trait.FUNCTION})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        return {} if _keeps_last(perm) else None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    def infer(self) -> TensorType:
        if self.x.type.rank < 1 or decide(self.x.type.shape[-1] < 1):
            raise self.refuse("the last axis must not be empty")
        if (self.out is None) == is_integer(self.x.type):
            raise self.refuse("`out` must be given exactly when x is quantized")
        return self.x.type if self.out is None else self.x.type.with_element(self.out)

    def table(self) -> Array:
        """int32 [256]: ``exp(-scale * d)`` in fixed point for d = max - x."""
        return self.table_for(self.x.type.shape[-1].bit_length())

    def table_for(self, bits: int) -> Array:
        """The table for rows whose length has a number of bits."""
        one = 2 ** (31 - bits) - 1
        d = np.arange(256, dtype=np.float64)
        powers: Array = np.exp(-self.x.type.params.scale * d)
        rounded: Array = np.rint(one * powers)
        return rounded.astype(np.int32)

    def inverse_step(self) -> np.float32:
        return np.float32(multiplier(1.0, divisor=self.type.params.scale))

    def reference(self, x: Array) -> Array:
        if self.out is None:
            powers = shrinking_power(x - x.max(axis=-1, keepdims=True))
            return np.asarray(powers * (np.float32(1) / row_sum(powers)))
        values = x.astype(np.int32)
        powers = self.table()[values.max(axis=-1, keepdims=True) - values]
        sums = powers.sum(axis=-1, keepdims=True, dtype=np.int32)
        shares = powers.astype(np.float32) / sums.astype(np.float32)
        return saturate(shares * self.inverse_step(), self.out, *self.out.dtype.limits)


@op
class LogSoftmax(Node):
    """``x - max - log(sum(exp(x - max)))`` along the last axis; float."""

    x: Node

    takes = taking(x=Kind.FLOAT)
    traits = frozenset({Trait.FUNCTION, Trait.PASSES_SPECIALS})

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        return {} if _keeps_last(perm) else None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_rows(self)

    def infer(self) -> TensorType:
        if self.x.type.rank < 1:
            raise self.refuse("x must have an axis")
        return self.x.type

    def reference(self, x: Array) -> Array:
        shifted = x - x.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(row_sum(shrinking_power(shifted))))
