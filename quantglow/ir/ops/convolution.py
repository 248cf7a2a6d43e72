"""Convolutions and matrix products.  Activations are NHWC, weights HWIO (Gemm: KN)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantglow.ir.graph.kinds import CODES, REALS, taking
from quantglow.ir.graph.node import Node, op
from quantglow.ir.ops.activation import Activation
from quantglow.ir.ops.arithmetic import center, is_integer, multiplier, saturate
from quantglow.ir.ops.contraction import Contraction, exact_operands
from quantglow.ir.ops.native import native_ops
from quantglow.ir.ops.samples import if_aligned, if_constant
from quantglow.ir.ops.windows import (
    Images,
    Pads,
    Pair,
    Part,
    check_windows,
    conv2d,
    fixed_pads,
    window_count,
)
from quantglow.ir.symbolic.size import Shape, broadcast_shapes, decide, decide_equal
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array


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

    takes = taking(**Contraction.takes, residual=REALS)
    in_place = ("residual",)

    @property
    def stored_operands(self) -> tuple[str, ...]:
        return ("w", *super().stored_operands)

    def infer(self) -> TensorType:
        if self.x.type.rank != 4 or self.w.type.rank != 4:
            raise self.refuse("x and w must have 4 dimensions")
        n, h, w, c = self.x.type.shape
        kh, kw, c_group, o = self.w.type.fixed_shape
        if self.group < 1 or decide(c_group * self.group != c) or o % self.group:
            raise self.refuse(f"{self.group} groups do not fit {c} channels to {o}")
        top, left, bottom, right = self.pads
        check_windows(self, (kh, kw), self.strides, self.dilations, self.pads)
        oh = window_count(h, kh, self.strides[0], self.dilations[0], top, bottom)
        ow = window_count(w, kw, self.strides[1], self.dilations[1], left, right)
        if decide(oh < 1) or decide(ow < 1):
            raise self.refuse("the window is larger than the padded input")
        result = self.typed((n, oh, ow, o), o)
        if self.residual is not None and not decide_equal(self.residual.type.shape, result.shape):
            raise self.refuse("residual must have the shape of the result")
        quantized = self.out is not None
        if self.residual is not None and is_integer(self.residual.type) != quantized:
            raise self.refuse("residual and result must both be float or both quantized")
        return result

    @property
    def depthwise(self) -> bool:
        """One input channel for each output channel."""
        is_alike = decide(self.group == self.x.type.shape[3])
        return is_alike and self.group == self.w.type.fixed_shape[3] and self.group > 1

    def reference(self, x: Array, w: Array, b: Array | None, residual: Array | None) -> Array:
        images, weights = exact_operands(self.x.type, x, w, fixed_pads(self.pads))

        def finish(sums: Array, part: Part) -> Array:
            return self.finish(sums, b, None if residual is None else residual[part])

        geometry = (self.strides, self.dilations, self.group)
        if residual is None and (ends := self.ends(b)) is not None:
            return conv2d(images, weights, *geometry, ends=ends)
        return conv2d(images, weights, *geometry, finish, dtype=self.type.dtype.numpy)

    @property
    def residual_type(self) -> TensorType:
        assert self.residual is not None
        return self.residual.type


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

    @property
    def stored_operands(self) -> tuple[str, ...]:
        return ("w", *super().stored_operands)

    def infer(self) -> TensorType:
        if self.x.type.rank != 4 or self.w.type.rank != 4:
            raise self.refuse("x and w must have 4 dimensions")
        n, h, w, c = self.x.type.shape
        kh, kw, c_group, o = self.w.type.fixed_shape
        if self.group < 1 or decide(c_group * self.group != c) or o % self.group:
            raise self.refuse(f"{self.group} groups do not fit {c} channels to {o}")
        check_windows(self, (kh, kw), self.strides, self.dilations)
        top, left, bottom, right = self.pads
        oh = (h - 1) * self.strides[0] + self.dilations[0] * (kh - 1) + 1 - top - bottom
        ow = (w - 1) * self.strides[1] + self.dilations[1] * (kw - 1) + 1 - left - right
        oh, ow = oh + self.output_padding[0], ow + self.output_padding[1]
        if any(decide(size < 1) for size in (h, w, oh, ow)):
            raise self.refuse(f"x or the result, {oh} by {ow}, would have no pixels")
        return self.typed((n, oh, ow, o), o)

    def reference(self, x: Array, w: Array, b: Array | None) -> Array:
        images, weights = exact_operands(self.x.type, x, w)
        spread = spread_out(images.whole(), self.strides)
        before, after = self.equivalent_pads()
        padded = Images.of(pad_or_crop(spread, before, after))
        flipped = weights[::-1, ::-1]

        def finish(sums: Array, part: Part) -> Array:
            return self.finish(sums, b, None)

        if (ends := self.ends(b)) is not None:
            return conv2d(padded, flipped, (1, 1), self.dilations, self.group, ends=ends)
        kind = self.type.dtype.numpy
        return conv2d(padded, flipped, (1, 1), self.dilations, self.group, finish, dtype=kind)

    def equivalent_pads(self) -> tuple[Pair, Pair]:
        """(top, left), (bottom, right) pads of the equal Conv on the spread-out x; may be < 0."""
        kh, kw = self.w.type.fixed_shape[:2]
        reach = (self.dilations[0] * (kh - 1), self.dilations[1] * (kw - 1))
        top, left, bottom, right = fixed_pads(self.pads)
        before = (reach[0] - top, reach[1] - left)
        after = (
            reach[0] - bottom + self.output_padding[0],
            reach[1] - right + self.output_padding[1],
        )
        return before, after


def spread_out(x: Array, strides: Pair) -> Array:
    """Insert ``stride - 1`` zeros between neighbors along H and W."""
    n, h, w, c = x.shape
    spread = np.zeros((n, (h - 1) * strides[0] + 1, (w - 1) * strides[1] + 1, c), x.dtype)
    spread[:, :: strides[0], :: strides[1]] = x
    return spread


def pad_or_crop(x: Array, before: Pair, after: Pair) -> Array:
    """Zero-pad H and W; negative pads cut."""
    pads = (max(before[0], 0), max(before[1], 0), max(after[0], 0), max(after[1], 0))
    if any(pads):
        x = Images.of(x, pads).whole()
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
        if decide(k != k2):
            raise self.refuse(f"x has {k} columns but w has {k2} rows")
        return self.typed((rows, columns), columns)

    def reference(self, x: Array, w: Array, b: Array | None) -> Array:
        # Each row is an image line of one pixel.
        images, weights = exact_operands(self.x.type, x[None, :, None], w)
        is_single = images.dtype == weights.dtype == np.float32
        if native_ops() is None or not (is_single and x.size and weights.size):
            return self.finish(images.whole()[0, :, 0] @ weights, b, None)

        def finish(sums: Array, part: Part) -> Array:
            return self.finish(sums, b, None)

        taps, once = weights[None, None], (1, 1)
        if (ends := self.ends(b)) is not None:
            return conv2d(images, taps, once, once, 1, ends=ends)[0, :, 0]
        kind = self.type.dtype.numpy
        return conv2d(images, taps, once, once, 1, finish, dtype=kind)[0, :, 0]


@op
class MatMul(Node):
    """``x @ y`` with NumPy batch broadcasting; both operands computed.

    Quantized: both int8 or int16 (zero point 0) per tensor, exact int32 sums, one rounding.
    """

    x: Node
    y: Node
    out: ElementType | None = None

    takes = taking(x=REALS, y=REALS, out=CODES)

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        return if_constant([self.y]) if self.type.rank == 2 else if_aligned(self)

    def infer(self) -> TensorType:
        x, y = self.x.type, self.y.type
        if x.rank < 2 or y.rank < 2 or decide(x.shape[-1] != y.shape[-2]):
            raise self.refuse("the last axis of x must match the second last of y")
        try:
            batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            raise self.refuse("batch axes do not broadcast") from None
        if is_integer(x) != is_integer(y):
            raise self.refuse("both operands must be float or both quantized")
        if any(kind.dtype is DType.I16 and kind.params.zero_point for kind in (x, y)):
            raise self.refuse("int16 operands must have zero point 0")
        if self.out is not None and not is_integer(x):
            raise self.refuse("`out` needs quantized operands")
        shape = (*batch, x.shape[-2], y.shape[-1])
        if self.out is None:
            return TensorType(DType.F32, shape)
        return TensorType(self.out.dtype, shape, self.out.quant)

    def reference(self, x: Array, y: Array) -> Array:
        if not is_integer(self.x.type):
            return np.asarray(x @ y)
        sums: Array = center(x, self.x.type).astype(np.float64) @ center(y, self.y.type)
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
