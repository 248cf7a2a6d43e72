"""Convolutions and products of integers with known weights, and factors folded into their scales.

Real weights are ``scale * code``: a factor for each channel (BatchNormalization and others behind
the product) goes into the scale, and the integers that the user rounded stay.  ``float_notes`` says
which products stay in float, and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Add, BatchNormalization, Conv, Dequantize, MatMul, Mul, Quantize
from quantglow.ir.ops.activation import Activation
from quantglow.ir.ops.arithmetic import dequantize
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.ops.unary import Fusible
from quantglow.ir.symbolic.size import decide_equal
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.quantization.plan.params import QuantizedWeights, center_weights, exact_weights
from quantglow.quantization.qdq.operators import computes, integers_below
from quantglow.quantization.rules import integer_operands, operand_names
from quantglow.support.arrays import Array
from quantglow.transforms.float.arithmetic import plain
from quantglow.transforms.float.constant_folding import channel_values, float_constant
from quantglow.transforms.float.layout import per_axis
from quantglow.transforms.float.weight_folding import scale_and_shift
from quantglow.transforms.rewrite import Uses, rewrite_pass

FINE = 1 / 64
"""A bias without parameters is rounded to steps of the int32 sum if half of one is at most this
part of a step of the result; else it is added in float."""

SAME_SCALE = 1e-6
"""Maximum relative difference of equal scales: products are rounded to float32 once or twice."""

BARE: dict[str, Any] = {"b": None, "activation": None, "low": -math.inf, "high": math.inf}
"""Fields of a contraction that gives its sums as they are."""

MAX_NAMES = 3


@dataclass(frozen=True)
class Integers:
    """A float contraction whose operands are integers: weights exact, zero points 0."""

    node: Contraction
    x: Node
    weights: Array
    scales: Array
    is_extra: bool = False
    """Whether another product has the name of the node, too."""

    def step(self) -> Array:
        """The real value of 1 in the int32 sum, by channel."""
        return self.scales.astype(np.float64) * self.x.type.params.scale

    def exact_bias(self) -> Array | None:
        """The bias in steps of the sum if it is stored so; zeros without bias."""
        b = self.node.b
        if b is None:
            return np.zeros(self.scales.shape, np.int32)
        if not isinstance(b, Dequantize) or not isinstance(b.x, Constant):
            return None
        params = b.x.type.params
        scales = np.broadcast_to(np.asarray(params.scales), self.scales.shape)
        if any(params.zero_points) or not np.allclose(scales, self.step(), rtol=SAME_SCALE, atol=0):
            return None
        return b.x.value.astype(np.int32)

    def rounded_bias(self, out: ElementType) -> Array | None:
        """The bias rounded to steps of the sum if these are fine beside those of ``out``."""
        real = real_bias(self.node)
        assert out.quant is not None
        if real is None or (self.step() / 2 > FINE * out.quant.scale).any():
            return None
        return np.rint(real / self.step())

    def within(self, bias: Array, out: ElementType | None) -> Array | None:
        """The bias, lowered where the int32 sum could overflow: tools choose scales with which a
        bias alone fills 32 bits.  None if that would change the result in steps of ``out``.
        """
        sums = np.abs(self.weights.astype(np.int64)).sum(axis=tuple(range(self.weights.ndim - 1)))
        zero_point, (lowest, highest) = self.x.type.params.zero_point, self.x.type.dtype.limits
        room = DType.I32.limits[1] - sums * max(highest - zero_point, zero_point - lowest)
        lowered = np.clip(bias, -room, room)
        lost = np.abs(bias - lowered) * self.step()
        tolerated = 0.0 if out is None or out.quant is None else FINE * out.quant.scale
        return None if (room < 0).any() or (lost > tolerated).any() else lowered

    def build(self, bias: Array, uses: Uses, **changes: Any) -> Node | None:
        """The integer form; None if the int32 sum could overflow."""
        codes = self.within(bias, changes.get("out"))
        if codes is None:
            return None
        absent = self.node.b is None or changes.get("b", self) is None
        quantized = QuantizedWeights(
            self.weights, self.scales, None if absent else codes.astype(np.int32)
        )
        stem = changes["name"] if self.is_extra else self.node.name
        names = operand_names(stem, uses.fresh)
        operands = integer_operands(names, quantized, self.x.type.params)
        node: Any = self.node
        result: Node = replace(node, x=self.x, **{**operands, **changes})
        return result


def real_bias(node: Contraction) -> Array | None:
    """The bias as reals, if it is known."""
    b = node.b
    if isinstance(b, Dequantize) and isinstance(b.x, Constant):
        return dequantize(b.x.value, b.x.type.params)
    return b.value if isinstance(b, Constant) else None


def _integer_contraction(node: Node, residual: bool = False) -> Integers | None:
    """The node as a contraction of int8 with int8 weights, or None.  ``residual``: whether it may
    have a residual of integers.
    """
    pair = _centered_integers(node, residual)
    return None if pair is None or pair[1].any() else pair[0]


def _centered_integers(node: Node, residual: bool = False) -> tuple[Integers, Array] | None:
    """The node as a contraction of int8 with int8 weights, and for each channel the difference from
    the model's weights less their zero points; or None.
    """
    if not isinstance(node, Contraction) or not node.type.dtype.is_float:
        return None
    x = integers_below(node.x)
    if x is None or not computes(x) or not isinstance(node.w, Dequantize):
        return None
    if isinstance(node, Conv) and node.residual is not None and not residual:
        return None
    stored = center_weights(node.w.x)
    if stored is None:
        return None
    weights, less, scales = stored
    return Integers(node, x, weights, scales), less


@rewrite_pass("fuse-contraction")
def fuse_contraction(node: Node, uses: Uses) -> Node | None:
    """Quantize(Conv(Dequantize(x), Dequantize(w), b) [+ Dequantize(r)]) -> Conv(x, w, b, r)"""
    if not isinstance(node, Quantize) or per_axis(node) or not computes(node):
        return None
    if isinstance(node.x, Contraction) and not uses.only(node, node.x):
        return None
    if not uses.single(node.x):
        return None
    integers = _integer_contraction(node.x, residual=True)
    changes: dict[str, Any] = {"name": node.name, "out": node.out}
    if isinstance(node.x, Conv) and node.x.residual is not None:
        changes["residual"] = integers_below(node.x.residual)
        if not computes(changes["residual"]):
            return None
    if integers is None and isinstance(node.x, Add):
        integers, residual = with_residual(node.x, uses)
        changes.update(residual=residual, low=node.x.low, high=node.x.high)
    if integers is None:
        return None
    bias = integers.exact_bias()
    if bias is None:
        bias = integers.rounded_bias(node.out)
    return None if bias is None else integers.build(bias, uses, **changes)


def with_residual(node: Add, uses: Uses) -> tuple[Integers | None, Node | None]:
    """The convolution and the integers that are added to it.

    The right one of two convolutions takes the other: a graph computes operands in order.
    """
    for conv, other in ((node.y, node.x), (node.x, node.y)):
        residual = integers_below(other)
        if not isinstance(conv, Conv) or not uses.single(conv) or not computes(residual):
            continue
        integers = _integer_contraction(conv) if conv.is_bare else None
        if integers is not None and decide_equal(conv.type.shape, other.type.shape):
            return integers, residual
    return None, None


@rewrite_pass("fuse-activated-sum")
def fuse_activated_sum(node: Node, uses: Uses) -> Node | None:
    """f(Conv(Dequantize(x), …) + Dequantize(r)) -> Conv(Dequantize(x), …, Dequantize(r), f)"""
    if not isinstance(node, Fusible) or not isinstance(node.x, Add) or not plain(node.x):
        return None
    integers, residual = with_residual(node.x, uses) if uses.single(node.x) else (None, None)
    if integers is None or residual is None:
        return None
    added = node.x.x if node.x.y is integers.node else node.x.y
    try:
        changes: dict[str, Any] = {"activation": Activation.of(node), "residual": added}
    except ValueError:  # numbers beyond float32
        return None
    return replace(integers.node, name=node.name, **changes)


@rewrite_pass("contract-integers")
def contract_integers(node: Node, uses: Uses) -> Node | None:
    """Conv(Dequantize(x), Dequantize(w), b) -> Conv(x, w, b) that gives float: the exact sum times
    its scale.  A bias that is not stored in steps of the sum is added in float, and so is the sum
    of x times the amount by which the weights are too low.
    """
    pair = _centered_integers(node)
    if pair is None or not isinstance(node, Contraction):
        return None
    integers, less = pair
    bias = integers.exact_bias()
    if bias is not None and not less.any() and (exact := integers.build(bias, uses)) is not None:
        return exact
    real = np.zeros(integers.scales.shape) if node.b is None else real_bias(node)
    if real is None:
        return None
    inputs = _sum_of_inputs(integers, uses) if less.any() else None
    name = uses.fresh(f"{node.name}:sum")
    sums = integers.build(np.zeros(integers.scales.shape), uses, name=name, **BARE)
    if sums is None or (less.any() and inputs is None):
        return None
    b: Node = Constant(name=uses.fresh(f"{node.name}:bias"), value=real.astype(np.float32))
    if inputs is not None:
        factor = (less * integers.scales).astype(np.float32)
        y = Constant(name=uses.fresh(f"{node.name}:less"), value=factor)
        product = Mul(name=uses.fresh(f"{node.name}:shift"), x=inputs, y=y)
        b = Add(name=uses.fresh(f"{node.name}:rest"), x=product, y=b)
    if node.activation is None:
        return Add(name=node.name, x=sums, y=b, low=node.low, high=node.high)
    total = Add(name=uses.fresh(f"{node.name}:total"), x=sums, y=b)
    return behind(node, total, uses)


def behind(node: Contraction, x: Node, uses: Uses) -> Node:
    """Activation and bounds of a contraction as operators behind ``x``; the last has its name."""
    f = node.activation
    assert f is not None
    value: Node = f.unary(uses.fresh(f"{node.name}:activated"), x)
    for kind, c in ((Mul, f.factor), (Add, f.offset)):
        label = kind.__name__.lower()
        y = Constant(name=uses.fresh(f"{node.name}:{label}-y"), value=np.array(c, np.float32))
        bounds = (-math.inf, math.inf) if kind is Mul else (node.low, node.high)
        name = node.name if kind is Add else uses.fresh(f"{node.name}:{label}")
        value = kind(name=name, x=value, y=y, low=bounds[0], high=bounds[1])
    return value


def _sum_of_inputs(integers: Integers, uses: Uses) -> Node | None:
    """The sum of the elements of x in a window, as reals [..., 1].

    None for products of groups: each needs a sum of its own, and float is faster than both.
    """
    if getattr(integers.node, "group", 1) > 1:
        return None
    ones, scales = np.ones_like(integers.weights[..., :1]), np.ones(1, np.float32)
    whole = Integers(integers.node, integers.x, ones, scales, is_extra=True)
    name = uses.fresh(f"{integers.node.name}:inputs")
    return whole.build(np.zeros(1), uses, name=name, **BARE)


@rewrite_pass("fold-scales")
def fold_scales(node: Node, uses: Uses) -> Node | None:
    """Conv(x, Dequantize(w), b) * s + t -> Conv(x, Dequantize(w'), b * s + t), w' of scale * |s|"""
    scaling = affine(node)
    integers = None if scaling is None else _integer_contraction(scaling[0])
    if scaling is None or integers is None:
        return None
    return _scale_product(
        node, *scaling, QuantizedWeights(integers.weights, integers.scales, None), uses
    )


@rewrite_pass("fold-stored-scales")
def fold_stored_scales(node: Node, uses: Uses) -> Node | None:
    """``fold_scales`` of products of float activations"""
    scaling = affine(node)
    w = None if scaling is None else scaling[0].w
    weights = exact_weights(w.x) if isinstance(w, Dequantize) else None
    return (
        None
        if scaling is None or weights is None
        else _scale_product(node, *scaling, weights, uses)
    )


def _scale_product(
    node: Node, product: Contraction, scale: Array, shift: Array, w: QuantizedWeights, uses: Uses
) -> Node | None:
    """The product with factors in the scales of its weights, under the name of the node."""
    bias = np.zeros(scale.shape) if product.b is None else real_bias(product)
    if bias is None or not product.is_bare or not uses.single(product):
        return None
    codes = np.where(scale < 0, -1, 1) * w.weights.astype(np.int32)
    scales = (w.scales * np.abs(scale)).astype(np.float32)
    if codes.max(initial=0) > DType.I8.limits[1] or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    element = ElementType(DType.I8, QuantParams.symmetric(scales, codes.ndim - 1))
    stored = Constant(
        name=uses.fresh(f"{node.name}:codes"), value=codes.astype(np.int8), element=element
    )
    changes: dict[str, Any] = {
        "name": node.name,
        "w": Dequantize(name=uses.fresh(f"{node.name}:w"), x=stored),
        "b": float_constant(bias * scale + shift, f"{node.name}:bias", uses),
    }
    return replace(product, **changes)


def affine(node: Node) -> tuple[Contraction, Array, Array] | None:
    """(product, scale, shift) of a node that computes ``product * scale + shift`` by channel."""
    if isinstance(node, BatchNormalization) and isinstance(node.x, Contraction):
        constants = scale_and_shift(node)
        return None if constants is None else (node.x, *constants)
    if not isinstance(node, Mul | Add) or not plain(node) or not isinstance(node.x, Contraction):
        return None
    product = node.x
    values = channel_values(node.y, product.type.shape[-1], product.type.rank)
    if values is None or node.type != product.type:
        return None
    wide = values.astype(np.float64)
    if isinstance(node, Mul):
        return product, wide, np.zeros_like(wide)
    return product, np.ones_like(wide), wide


def float_notes(graph: Graph) -> tuple[str, ...]:
    """A line for each reason: the number of such products, and the names of the first ones."""
    names_by_reason: dict[str, list[str]] = {}
    for node in graph.nodes:
        if (reason := _refusal_reason(node)) is not None:
            names_by_reason.setdefault(reason, []).append(node.name)
    return tuple(
        f"{len(names)} product(s) between roundings compute in float, {reason}: "
        f"{', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}"
        for reason, names in names_by_reason.items()
    )


def _refusal_reason(node: Node) -> str | None:
    """Why a product of quantized operands is not one of integers; None for all other nodes."""
    if not isinstance(node, Contraction | MatMul):
        return None
    x, y = node.operands[:2]
    for operand in (x, y):
        if isinstance(operand, Dequantize) and not computes(operand.x):
            kind = operand.x.type.dtype
            return f"their operands being {kind} with a zero point, or quantized by axis"
    if not isinstance(x, Dequantize):
        return None
    if isinstance(node, MatMul):
        return "one operand not being quantized"
    return (
        "their weights not being int8 with a scale for each output channel, around a zero "
        "point of int8 where they are in groups"
    )
