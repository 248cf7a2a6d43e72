"""Convolutions and products of integers with weights known as integers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.graph.node import Constant, Node
from quantglow.graph.rewrite import Uses, rewrite_pass
from quantglow.ops import Add, Conv, Dequantize, Quantize
from quantglow.ops.arithmetic import dequantize
from quantglow.ops.convolution import Contraction
from quantglow.passes.layout import per_axis
from quantglow.quantization.params import QuantizedWeights
from quantglow.quantization.qdq.movement import computes, integers_below
from quantglow.quantization.rules import integer_operands
from quantglow.types import Array, DType, ElementType

FINE = 1 / 64
"""A bias without parameters is rounded to steps of the int32 sum if half of one is at most this
part of a step of the result; else it is added in float."""

SAME_SCALE = 1e-6
"""Scales that differ by less are the same: products rounded to float32 once or twice."""


@dataclass(frozen=True)
class Integers:
    """A float contraction whose operands are integers: weights exact, zero points 0."""

    node: Contraction
    x: Node
    weights: Array
    scales: Array

    def step(self) -> Array:
        """The real value of 1 in the int32 sum, by channel."""
        return self.scales.astype(np.float64) * self.x.type.params.scale

    def exact_bias(self) -> Array | None:
        """The bias in these steps, where it is known in them; zeros without bias."""
        b = self.node.b
        if b is None:
            return np.zeros(self.scales.shape, np.int32)
        if not isinstance(b, Dequantize) or not isinstance(b.x, Constant):
            return None
        params = b.x.type.params
        own = np.broadcast_to(np.asarray(params.scales), self.scales.shape)
        if any(params.zero_points) or not np.allclose(own, self.step(), rtol=SAME_SCALE, atol=0):
            return None
        return b.x.value.astype(np.int32)

    def rounded_bias(self, out: ElementType) -> Array | None:
        """The bias rounded to these steps, where they are fine beside those of ``out``."""
        real = real_bias(self.node)
        assert out.quant is not None
        if real is None or (self.step() / 2 > FINE * out.quant.scale).any():
            return None
        return np.rint(real / self.step())

    def within(self, bias: Array, out: ElementType | None) -> Array | None:
        """The bias, lowered where the int32 sum could overflow: tools choose scales by which a
        bias alone fills 32 bits.  None if that would be seen in steps of ``out``."""
        sums = np.abs(self.weights.astype(np.int64)).sum(axis=tuple(range(self.weights.ndim - 1)))
        zero_point, (lowest, highest) = self.x.type.params.zero_point, self.x.type.dtype.limits
        room = DType.I32.limits[1] - sums * max(highest - zero_point, zero_point - lowest)
        lowered = np.clip(bias, -room, room)
        lost = np.abs(bias - lowered) * self.step()
        tolerated = 0.0 if out is None or out.quant is None else FINE * out.quant.scale
        return None if (room < 0).any() or (lost > tolerated).any() else lowered

    def made(self, bias: Array, **changes: Any) -> Node | None:
        """The integer form; None if the int32 sum could overflow."""
        codes = self.within(bias, changes.get("out"))
        if codes is None:
            return None
        absent = self.node.b is None or changes.get("b", self) is None
        quantized = QuantizedWeights(
            self.weights, self.scales, None if absent else codes.astype(np.int32)
        )
        operands = integer_operands(self.node.name, quantized, self.x.type.params)
        node: Any = self.node
        made: Node = replace(node, x=self.x, **{**operands, **changes})
        return made


def real_bias(node: Contraction) -> Array | None:
    """The bias as reals, if it is known."""
    b = node.b
    if isinstance(b, Dequantize) and isinstance(b.x, Constant):
        return dequantize(b.x.value, b.x.type.params)
    return b.value if isinstance(b, Constant) else None


def integers_of(node: Node) -> Integers | None:
    """The node as a contraction of int8 with int8 weights, None if it is none."""
    if not isinstance(node, Contraction) or not node.type.dtype.is_float:
        return None
    x = integers_below(node.x)
    if x is None or not computes(x) or not isinstance(node.w, Dequantize):
        return None
    if isinstance(node, Conv) and node.residual is not None:
        return None
    found = symmetric(node.w.x)
    return None if found is None else Integers(node, x, *found)


def symmetric(w: Node) -> tuple[Array, Array] | None:
    """Weights as int8 with zero point 0, and a scale for each channel of the last axis.

    Zero points are subtracted: exact, if all differences are int8.
    """
    if not isinstance(w, Constant) or w.type.dtype is not DType.I8:
        return None
    params = w.type.params
    if params.axis not in (None, w.type.rank - 1):
        return None
    centred = w.value.astype(np.int32) - np.asarray(params.zero_points, np.int32)
    lowest, highest = DType.I8.limits
    if centred.size and not (lowest <= centred.min() and centred.max() <= highest):
        return None
    scales = np.asarray(params.scales, np.float32)
    return centred.astype(np.int8), np.broadcast_to(scales, w.type.shape[-1:]).copy()


@rewrite_pass("fuse-contraction")
def fuse_contraction(node: Node, uses: Uses) -> Node | None:
    """Quantize(Conv(Dequantize(x), Dequantize(w), b) [+ Dequantize(r)]) -> Conv(x, w, b, r)"""
    if not isinstance(node, Quantize) or per_axis(node) or not computes(node):
        return None
    if not uses.single(node.x):
        return None
    found = integers_of(node.x)
    changes: dict[str, Any] = {"name": node.name, "out": node.out}
    if found is None and isinstance(node.x, Add):
        found, residual = with_residual(node.x, uses)
        changes.update(residual=residual, low=node.x.low, high=node.x.high)
    if found is None:
        return None
    bias = found.exact_bias()
    if bias is None:
        bias = found.rounded_bias(node.out)
    return None if bias is None else found.made(bias, **changes)


def with_residual(node: Add, uses: Uses) -> tuple[Integers | None, Node | None]:
    """The convolution and the integers that are added to it.

    Of two convolutions the right one takes the other: a graph computes operands in order.
    """
    for conv, other in ((node.y, node.x), (node.x, node.y)):
        residual = integers_below(other)
        if not isinstance(conv, Conv) or not uses.single(conv) or not computes(residual):
            continue
        bounded = (conv.low, conv.high) != (-math.inf, math.inf)
        found = None if bounded else integers_of(conv)
        if found is not None and conv.type.shape == other.type.shape:
            return found, residual
    return None, None


@rewrite_pass("contract-integers")
def contract_integers(node: Node, uses: Uses) -> Node | None:
    """Conv(Dequantize(x), Dequantize(w), b) -> Conv(x, w, b) that gives float: the exact sum times
    its scale.  A bias that is not known in steps of the sum is added in float."""
    found = integers_of(node)
    if found is None or not isinstance(node, Contraction):
        return None
    bias = found.exact_bias()
    if bias is not None and (made := found.made(bias)) is not None:
        return made
    real = real_bias(node)
    if real is None:
        return None
    unbounded = {"low": -math.inf, "high": math.inf}
    name = uses.fresh(f"{node.name}:sum")
    sums = found.made(np.zeros(found.scales.shape), name=name, b=None, **unbounded)
    if sums is None:
        return None
    b = Constant(name=uses.fresh(f"{node.name}:bias"), value=real.astype(np.float32))
    return Add(name=node.name, x=sums, y=b, low=node.low, high=node.high)
