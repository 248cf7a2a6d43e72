"""Products of an activation and constant weights: shared types, exact sums, one rounding.

Quantized forms: x is int8 or int16 per tensor, w an int8 Constant, symmetric and per output channel
(the last axis), b an int32 Constant of scale ``x.scale * w.scale``.  The sum is exact in int32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import CODES, REALS, Kind, taking
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.activation import Activation
from quantglow.ir.ops.arithmetic import (
    integer_bounds,
    is_integer,
    multiplier,
    quantization,
    saturate_over,
)
from quantglow.ir.ops.native import Ends, IntegerEnds, native_ops
from quantglow.ir.ops.samples import if_constant
from quantglow.ir.ops.windows import FixedPads, Images
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_equal
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array

EXACT = 2**24
"""Up to here float32 holds every integer."""

FACTORS = (DType.I8, DType.U8, DType.I16)
"""Element types of quantized activations that products take."""


class Contraction(Node):
    """Base of Conv, ConvTranspose and Gemm: ``clip(activation(product(x, w) + b + residual))``.

    Quantized, the sum becomes float32 in steps of the output; with an ``activation`` in its unit,
    from which that makes output steps; then it is rounded.
    """

    x: Node
    w: Node
    b: Node | None
    activation: Activation | None
    low: float
    high: float
    out: ElementType | None

    takes = taking(
        x=REALS,
        w=Kind.FLOAT | Kind.BYTE | Kind.CHANNELS,
        b=Kind.FLOAT | Kind.INTEGER | Kind.WIDE | Kind.WIDE_CHANNELS,
        out=CODES,
    )

    @property
    def stored_operands(self) -> tuple[str, ...]:
        """Integers are packed, and corrected for the zero point of x."""
        return ("w", "b") if is_integer(self.x.type) else ()

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        """Weights must be the same for all samples, which are images or rows of their own."""
        return if_constant([self.w, self.b])

    @property
    def is_bare(self) -> bool:
        """Whether the result is the sum: neither an activation nor bounds."""
        return self.activation is None and self.low == -math.inf and self.high == math.inf

    @property
    def live(self) -> tuple[float, float]:
        """The sums outside of which the result is the same on either side."""
        return (self.low, self.high) if self.activation is None else self.activation.live

    def typed(self, shape: Shape, channels: Dim) -> TensorType:
        """The result type, after checking element types and the bias."""
        if self.b is not None and not decide_equal(self.b.type.shape, (channels,)):
            raise self.refuse(f"b must have shape ({channels},)")
        if any(decide(d < 0) for d in shape):
            raise self.refuse(f"the result would have shape {shape}")
        if math.isnan(self.low) or math.isnan(self.high):
            raise self.refuse("bounds must be numbers")
        if is_integer(self.x.type):
            weights = self.w.type
            if weights.dtype is not DType.I8:
                raise self.refuse("x is quantized, so w must be int8")
            if weights.quant is None or any(weights.quant.zero_points):
                raise self.refuse("x is quantized, so w must be quantized symmetrically")
            if weights.quant.axis not in (None, weights.rank - 1):
                raise self.refuse("w must be quantized along its last axis")
            if self.b is not None and self.b.type.dtype is not DType.I32:
                raise self.refuse("x is quantized, so b must be int32")
        elif not self.w.type.dtype.is_float:
            raise self.refuse("x and w must both be float or both quantized")
        elif self.b is not None and not self.b.type.dtype.is_float:
            raise self.refuse("x is float, so b must be")
        elif self.out is not None:
            raise self.refuse("`out` needs quantized operands")
        if self.out is None:
            return TensorType(DType.F32, shape)
        return TensorType(self.out.dtype, shape, self.out.quant)

    def finish(self, sums: Any, b: Array | None, residual: Array | None) -> Array:
        """Bias, residual, bounds and the one rounding of the quantized form.  Overwrites sums."""
        if not is_integer(self.x.type):
            for term in (b, residual):
                if term is not None:
                    np.add(sums, term, out=sums)
            return self.finished(sums)
        if (ended := self._natively_finished(sums, b, residual)) is not None:
            return ended
        values = float_sums(sums, b)
        values *= self.accumulator_scale()
        if residual is not None:
            values += self.residual_steps(residual)
        if self.out is None:
            return self.finished(values)
        if self.activation is not None:
            values = self.activation.evaluate(values, self.type.params.scale)
        bounds = integer_bounds(self.out, self.low, self.high)
        return saturate_over(values, self.out, *bounds)

    def _natively_finished(
        self, sums: Array, b: Array | None, residual: Array | None
    ) -> Array | None:
        """``finish`` by native code: from float32 to 8 bits, without an activation; else None."""
        native, out = native_ops(), self.out
        if native is None or out is None or out.dtype.nbytes > 1 or self.activation is not None:
            return None
        kind = None if residual is None else self.residual_type
        if sums.dtype != np.float32 or not sums.flags.c_contiguous:
            return None
        if kind is not None and (not is_integer(kind) or kind.dtype.nbytes > 1):
            return None
        low, high = integer_bounds(out, self.low, self.high)
        channels, scales = sums.shape[-1:], self.accumulator_scale()
        ends = IntegerEnds(
            bias=np.broadcast_to(np.zeros(1, np.int32) if b is None else b, channels),
            scales=np.broadcast_to(scales, channels),
            zero_point=quantization(out).zero_point,
            low=low,
            high=high,
            residual=residual,
            residual_zero_point=0 if kind is None else kind.params.zero_point,
            ratio=0.0 if kind is None else self.residual_ratio,
        )
        result = np.empty(sums.shape, out.dtype.numpy)
        native.integers(sums, ends, result)
        return result

    def ends(self, b: Array | None) -> Ends | None:
        """All of ``finish`` without a residual; None where it is more than a bias and bounds."""
        if is_integer(self.x.type) or self.activation is not None:
            return None
        return Ends(b, self.low, self.high)

    def finished(self, values: Array) -> Array:
        """Activation and bounds of real sums.  May overwrite them."""
        if self.activation is not None:
            values = self.activation.evaluate(values)
        if self.low == -math.inf and self.high == math.inf:
            return values
        return np.clip(values, np.float32(self.low), np.float32(self.high), out=values)

    @property
    def sum_step(self) -> float:
        """The real value of 1 in the float32 sum: 1 for float results, else an output step, or
        the unit of the activation."""
        if self.out is None:
            return 1.0
        step = self.type.params.scale
        return step if self.activation is None else self.activation.unit(step)

    def accumulator_scale(self) -> Array:
        """float32 multipliers from the int32 sum to the float32 one, see ``sum_step``."""
        scales = self.w.type.params.scales
        return multiplier(scales, self.x.type.params.scale, divisor=self.sum_step)

    @property
    def residual_type(self) -> TensorType:
        """The type of the residual operand."""
        raise NotImplementedError

    @property
    def residual_ratio(self) -> float:
        """float32 steps of the float32 sum, see ``sum_step``, for one of the residual operand."""
        return float(multiplier(self.residual_type.params.scale, divisor=self.sum_step))

    def residual_steps(self, residual: Array) -> Array:
        """The residual operand in steps of the float32 sum."""
        if not is_integer(self.residual_type):
            return residual if self.sum_step == 1 else multiplier(residual, divisor=self.sum_step)
        zero_point = self.residual_type.params.zero_point
        steps: Array = np.subtract(residual, zero_point, dtype=np.float32)
        return np.multiply(steps, np.float32(self.residual_ratio), out=steps)


def float_sums(sums: Array, b: Array | None) -> Array:
    """Exact integer sums and an int32 bias, added in int32 and then rounded to float32.  May
    overwrite the sums.
    """
    bias = np.zeros(1, np.int32) if b is None else b
    if sums.dtype == np.float32 and np.abs(bias.astype(np.int64)).max(initial=0) <= EXACT:
        # Two integers that float32 holds: their sum is rounded once, as from int32.
        return np.asarray(np.add(sums, bias.astype(np.float32), out=sums))
    # Adding the bias may wrap around.
    whole = sums.astype(np.int64) + bias
    return whole.astype(np.int32).astype(np.float32)


def exact_operands(
    kind: TensorType, x: Array, w: Array, pads: FixedPads = (0, 0, 0, 0)
) -> tuple[Images, Array]:
    """Images and weights, in the least precision that carries all integer sums exactly.

    float32 does below 2**24, in any order of summation, and takes half the time of float64.
    """
    if not is_integer(kind):
        return Images.of(x, pads), w
    zero_point = kind.params.zero_point
    ends = (int(x.min(initial=zero_point)), int(x.max(initial=zero_point)))
    largest = max(abs(end - zero_point) for end in ends)
    is_exact = largest * _largest_weight(w) < EXACT or largest * _largest_sum(w) < EXACT
    dtype = np.float32 if is_exact else np.float64
    return Images(x, dtype, zero_point, pads), w.astype(dtype)


def _largest_weight(w: Array) -> float:
    """A bound of the sum of magnitudes of int8 weights [..., O] for one output."""
    return float(128 * (w.size // max(w.shape[-1], 1)))


def _largest_sum(w: Array) -> float:
    """The largest sum of magnitudes of int8 weights [..., O] for one output, or a bound of it."""
    if (bound := _largest_weight(w)) >= EXACT:
        return bound
    magnitudes = np.abs(w.astype(np.float32))
    sums = np.asarray(magnitudes.sum(axis=tuple(range(w.ndim - 1))))
    return float(sums.max(initial=0.0))
