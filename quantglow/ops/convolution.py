"""Convolutions and matrix products.  Activations are NHWC, weights HWIO (Gemm: KN).

Quantized forms: x is int8 or int16 per tensor, w an int8 Constant, symmetric and per output channel
(the last axis), b an int32 Constant of scale ``x.scale * w.scale``.  The sum is exact in int32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.graph.node import Node, op
from quantglow.ops.activation import Activation
from quantglow.ops.arithmetic import centred, integer_bounds, is_integer, multiplier, saturate
from quantglow.ops.window_products import Part, conv2d
from quantglow.ops.windows import Pads, Pair, check_windows, window_count
from quantglow.types import Array, DType, ElementType, TensorType

FACTORS = (DType.I8, DType.U8, DType.I16)
"""Element types of quantized activations that products take."""


class Contraction(Node):
    """What Conv, ConvTranspose and Gemm share: ``clip(activation(product(x, w) + b + residual))``.

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

    @property
    def is_bare(self) -> bool:
        """Whether the result is the sum: neither an activation nor bounds."""
        return self.activation is None and self.low == -math.inf and self.high == math.inf

    @property
    def live(self) -> tuple[float, float]:
        """The sums outside of which the result is the same on either side."""
        return (self.low, self.high) if self.activation is None else self.activation.live

    def typed(self, shape: tuple[int, ...], channels: int) -> TensorType:
        """The result type, after checking element types and the bias."""
        if self.b is not None and self.b.type.shape != (channels,):
            raise self.refuse(f"b must have shape ({channels},)")
        if any(d < 0 for d in shape):
            raise self.refuse(f"the result would have shape {shape}")
        if is_integer(self.x.type):
            weights = self.w.type
            if self.x.type.dtype not in FACTORS or weights.dtype is not DType.I8:
                raise self.refuse("x must be 8-bit or int16, w int8")
            if weights.quant is None or any(weights.quant.zero_points):
                raise self.refuse("x is quantized, so w must be quantized symmetrically")
            if weights.quant.axis not in (None, weights.rank - 1):
                raise self.refuse("w must be quantized along its last axis")
            if self.b is not None and self.b.type.dtype is not DType.I32:
                raise self.refuse("x is quantized, so b must be int32")
        elif not (self.x.type.dtype.is_float and self.w.type.dtype.is_float):
            raise self.refuse("x and w must both be float or both quantized")
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
        # float32 holds sums below 2**24 only; what a bias adds to them may wrap around in int32.
        whole = sums.astype(np.int32 if sums.dtype == np.float32 else np.int64)
        if b is not None:
            whole += b
        values = whole.astype(np.int32, copy=False).astype(np.float32)
        values *= self.accumulator_scale()
        if residual is not None:
            values += self.residual_steps(residual)
        if self.out is None:
            return self.finished(values)
        if self.activation is not None:
            values = self.activation.evaluate(values, self.type.params.scale)
        return saturate(values, self.out, *integer_bounds(self.out, self.low, self.high))

    def finished(self, values: Array) -> Array:
        """Activation and bounds of real sums.  May overwrite them."""
        if self.activation is not None:
            values = self.activation.evaluate(values)
        if self.low == -math.inf and self.high == math.inf:
            return values
        return np.clip(values, np.float32(self.low), np.float32(self.high), out=values)

    @property
    def sum_step(self) -> float:
        """The real value of 1 in the float32 sum: 1 for float results, else an output step, or what
        the activation asks for."""
        if self.out is None:
            return 1.0
        step = self.type.params.scale
        return step if self.activation is None else self.activation.unit(step)

    def accumulator_scale(self) -> Array:
        """float32 multipliers from the int32 sum to the float32 one, see ``sum_step``."""
        scales = self.w.type.params.scales
        return multiplier(scales, self.x.type.params.scale, divisor=self.sum_step)

    def residual_steps(self, residual: Array) -> Array:
        """The residual operand in steps of the float32 sum, see ``sum_step``."""
        raise NotImplementedError


@op
class Conv(Contraction):
    """``clip(activation(conv2d(x, w) + b + residual), low, high)``, rounded once if quantized.

    x [N, H, W, C]; w [KH, KW, C/group, O]; b [O]; residual has the result's shape.
    A quantized Conv without ``out`` gives float32: the int32 sum times its scale.
    """

    x: Node
    w: Node
    b: Node | None = None
    residual: Node | None = None
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    group: int = 1
    activation: Activation | None = None
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if self.x.type.rank != 4 or self.w.type.rank != 4:
            raise self.refuse("x and w must have 4 dimensions")
        n, h, w, c = self.x.type.shape
        kh, kw, c_group, o = self.w.type.shape
        if self.group < 1 or c_group * self.group != c or o % self.group:
            raise self.refuse(f"{self.group} groups do not fit {c} channels to {o}")
        top, left, bottom, right = self.pads
        check_windows(self, (kh, kw), self.strides, self.dilations, self.pads)
        oh = window_count(h, kh, self.strides[0], self.dilations[0], top, bottom)
        ow = window_count(w, kw, self.strides[1], self.dilations[1], left, right)
        if min(oh, ow) < 1:
            raise self.refuse("the window is larger than the padded input")
        result = self.typed((n, oh, ow, o), o)
        if self.residual is not None and self.residual.type.shape != result.shape:
            raise self.refuse("residual must have the shape of the result")
        if self.residual is not None and self.residual.type.quant and self.out is None:
            raise self.refuse("a quantized residual needs a quantized result")
        return result

    @property
    def depthwise(self) -> bool:
        """One input channel for each output channel."""
        return self.group == self.x.type.shape[3] == self.w.type.shape[3] and self.group > 1

    def reference(self, x: Array, w: Array, b: Array | None, residual: Array | None) -> Array:
        values, weights = exact_operands(self.x.type, x, w)
        top, left, bottom, right = self.pads
        padded = values
        if any(self.pads):
            padded = np.pad(values, ((0, 0), (top, bottom), (left, right), (0, 0)))

        def finish(sums: Array, part: Part) -> Array:
            return self.finish(sums, b, None if residual is None else residual[part])

        return conv2d(padded, weights, self.strides, self.dilations, self.group, finish)

    def residual_steps(self, residual: Array) -> Array:
        assert self.residual is not None
        if not is_integer(self.residual.type):
            return residual if self.sum_step == 1 else multiplier(residual, divisor=self.sum_step)
        ratio = multiplier(self.residual.type.params.scale, divisor=self.sum_step)
        return centred(residual, self.residual.type).astype(np.float32) * ratio


def exact_operands(kind: TensorType, x: Array, w: Array) -> tuple[Array, Array]:
    """Operands ready for BLAS, in the least precision that carries all integer sums exactly.

    float32 does below 2**24, in any order of summation, and takes half the time of float64.
    """
    if not is_integer(kind):
        return x, w
    zero_point = kind.params.zero_point
    ends = (int(x.min(initial=zero_point)), int(x.max(initial=zero_point)))
    largest = max(abs(end - zero_point) for end in ends)
    dtype = np.float32 if largest * _largest_sum(w) < 2.0**24 else np.float64
    values: Array = np.subtract(x, zero_point, dtype=dtype)
    return values, w.astype(dtype)


def _largest_sum(w: Array) -> float:
    """The largest sum of magnitudes of int8 weights [..., O] for one output, or a bound of it."""
    inputs = w.size // max(w.shape[-1], 1)
    if 128 * inputs >= 2**24:
        return float(128 * inputs)
    magnitudes = np.abs(w.astype(np.float32))
    sums = np.asarray(magnitudes.sum(axis=tuple(range(w.ndim - 1))))
    return float(sums.max(initial=0.0))


@op
class ConvTranspose(Contraction):
    """``clip(activation(conv2d_transpose(x, w) + b))``: each x element adds its scaled kernel.

    x [N, H, W, C]; w [KH, KW, C/group, O] with O output channels in all.
    """

    x: Node
    w: Node
    b: Node | None = None
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    output_padding: Pair = (0, 0)
    group: int = 1
    activation: Activation | None = None
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if self.x.type.rank != 4 or self.w.type.rank != 4:
            raise self.refuse("x and w must have 4 dimensions")
        n, h, w, c = self.x.type.shape
        kh, kw, c_group, o = self.w.type.shape
        if self.group < 1 or c_group * self.group != c or o % self.group:
            raise self.refuse(f"{self.group} groups do not fit {c} channels to {o}")
        check_windows(self, (kh, kw), self.strides, self.dilations)
        top, left, bottom, right = self.pads
        oh = (h - 1) * self.strides[0] + self.dilations[0] * (kh - 1) + 1 - top - bottom
        ow = (w - 1) * self.strides[1] + self.dilations[1] * (kw - 1) + 1 - left - right
        oh, ow = oh + self.output_padding[0], ow + self.output_padding[1]
        if min(h, w, oh, ow) < 1:
            raise self.refuse(f"x or the result, {oh} by {ow}, would have no pixels")
        return self.typed((n, oh, ow, o), o)

    def reference(self, x: Array, w: Array, b: Array | None) -> Array:
        values, weights = exact_operands(self.x.type, x, w)
        spread = spread_out(values, self.strides)
        before, after = self.equivalent_pads()
        padded = pad_or_crop(spread, before, after)
        flipped = weights[::-1, ::-1]

        def finish(sums: Array, part: Part) -> Array:
            return self.finish(sums, b, None)

        return conv2d(padded, flipped, (1, 1), self.dilations, self.group, finish)

    def equivalent_pads(self) -> tuple[Pair, Pair]:
        """(top, left), (bottom, right) pads of the equal Conv on the spread-out x; may be < 0."""
        kh, kw = self.w.type.shape[:2]
        reach = (self.dilations[0] * (kh - 1), self.dilations[1] * (kw - 1))
        top, left, bottom, right = self.pads
        before = (reach[0] - top, reach[1] - left)
        after = (
            reach[0] - bottom + self.output_padding[0],
            reach[1] - right + self.output_padding[1],
        )
        return before, after


def spread_out(x: Array, strides: Pair) -> Array:
    """Insert ``stride - 1`` zeros between neighbours along H and W."""
    n, h, w, c = x.shape
    spread = np.zeros((n, (h - 1) * strides[0] + 1, (w - 1) * strides[1] + 1, c), x.dtype)
    spread[:, :: strides[0], :: strides[1]] = x
    return spread


def pad_or_crop(x: Array, before: Pair, after: Pair) -> Array:
    """Zero-pad H and W; negative pads cut."""
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    x = np.pad(x, ((0, 0), *widths, (0, 0)))
    (top, left), (bottom, right) = ((max(-v, 0) for v in pair) for pair in (before, after))
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]


@op
class Gemm(Contraction):
    """``clip(activation(x @ w + b), low, high)`` for 2-D x [M, K], w [K, N]; no transposes."""

    x: Node
    w: Node
    b: Node | None = None
    activation: Activation | None = None
    low: float = -math.inf
    high: float = math.inf
    out: ElementType | None = None

    def infer(self) -> TensorType:
        if self.x.type.rank != 2 or self.w.type.rank != 2:
            raise self.refuse("x and w must have 2 dimensions")
        (rows, k), (k2, columns) = self.x.type.shape, self.w.type.shape
        if k != k2:
            raise self.refuse(f"x has {k} columns but w has {k2} rows")
        return self.typed((rows, columns), columns)

    def reference(self, x: Array, w: Array, b: Array | None) -> Array:
        values, weights = exact_operands(self.x.type, x, w)
        return self.finish(values @ weights, b, None)


@op
class MatMul(Node):
    """``x @ y`` with NumPy batch broadcasting; both operands computed.

    Quantized: both int8 or int16 (zero point 0) per tensor, exact int32 sums, one rounding.
    """

    x: Node
    y: Node
    out: ElementType | None = None

    def infer(self) -> TensorType:
        x, y = self.x.type, self.y.type
        if x.rank < 2 or y.rank < 2 or x.shape[-1] != y.shape[-2]:
            raise self.refuse("the last axis of x must match the second last of y")
        try:
            batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            raise self.refuse("batch axes do not broadcast") from None
        if is_integer(x) != is_integer(y):
            raise self.refuse("both operands must be float or both quantized")
        if any(kind.dtype is DType.I16 and kind.params.zero_point for kind in (x, y)):
            raise self.refuse("int16 operands must have zero point 0")
        shape = (*(int(d) for d in batch), x.shape[-2], y.shape[-1])
        if self.out is None:
            return TensorType(DType.F32, shape)
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, x: Array, y: Array) -> Array:
        if not is_integer(self.x.type):
            return np.asarray(x @ y)
        sums: Array = centred(x, self.x.type).astype(np.float64) @ centred(y, self.y.type)
        accumulator = sums.astype(np.int64).astype(np.int32)
        values: Array = accumulator.astype(np.float32) * self.accumulator_scale()
        if self.out is None:
            return values
        return saturate(values, self.out, *self.out.dtype.limits)

    def accumulator_scale(self) -> Any:
        """The float32 multiplier from the int32 sum to output steps (or reals)."""
        divisor = 1.0 if self.out is None else self.type.params.scale
        scales = (self.x.type.params.scale, self.y.type.params.scale)
        return multiplier(*scales, divisor=divisor)
