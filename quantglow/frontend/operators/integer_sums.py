"""Exact integer products, as operators of the graph.

The int32 sum of ``(x - x_zero_point) * (w - w_zero_point)``: ``x`` as int8 of scale 1, ``x - 128``
for uint8; an int8 product of that and the weights, in pieces whose sums float32 holds exactly; the
pieces added in int32, with ``(128 - x_zero_point) * sum(w)``.  Weights that are no int8 around
their zero point are kept lower by a number for each channel, which is multiplied with the sum of
``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from math import prod

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, Unsupported, recoded
from quantglow.frontend.nodes.values import Quantized
from quantglow.graph.node import Constant, Node
from quantglow.ops import Elementwise, Gemm, Reshape, Slice
from quantglow.ops.expression import Expr, arg, iconst
from quantglow.ops.expression import call as fn
from quantglow.types import DType, ElementType, QuantParams

EXACT = 2**24
"""float32 holds every integer up to this one."""

WHOLE = ElementType(DType.I8, QuantParams.per_tensor(1.0, 0))
"""int8 that stand for themselves."""

SUMS = ElementType(DType.I32)


def rows_times_weights(call: Call, name: str, x: Node, point: ZeroPoint, weights: Array) -> Node:
    """``whole`` integers x [..., K] times weights [K, N] that are known and centred, int32.
    Raises ``ValueError`` for another K."""
    *batch, k = x.type.shape
    if k != len(weights):
        raise ValueError(f"x has {k} columns, but the weights have {len(weights)} rows")
    rows = Reshape(name=call.derived("rows"), x=x, shape=(prod(batch), k))

    def product(name: str, part: slice, w: Array) -> Node:
        start, size = part.start, part.stop - part.start
        piece: Node = rows
        if size < k:
            piece = Slice(
                name=call.derived("piece"),
                x=rows,
                starts=(0, start),
                sizes=(rows.shape[0], size),
                steps=(1, 1),
            )
        return Gemm(name=name, x=piece, w=known_weights(call, w))

    codes, less = lowered(weights)
    terms = Terms(weights.sum(axis=0), less, products(call, codes, product))
    if less.any():
        terms.inputs += products(call, np.ones((k, 1), np.int32), product)
    if len(batch) == 1:
        return terms.summed(name, call, point)
    total = terms.summed(call.derived("total"), call, point)
    return Reshape(name=name, x=total, shape=(*batch, weights.shape[1]))


def centred_weights(call: Call, position: int, zero_point: int) -> Array:
    """``w - zero_point`` as int32; a zero point for each output channel, or one."""
    w = call.array(position, "weight").astype(np.int32)
    if not call.has(zero_point):
        return w
    points = call.array(zero_point, "zero point").astype(np.int32)
    if call.proto.op_type == "ConvInteger":
        points = points.reshape(-1, *(1,) * (w.ndim - 1))
    return np.asarray(w - points)


def whole(call: Call, position: int) -> Node:
    """A run-time operand as int8 that stand for themselves; uint8 128 lower."""
    value, name = call.value(position), call.value_name(position)
    x = value.node if isinstance(value, Quantized) else call.tensor(position)
    if x.type.dtype not in (DType.I8, DType.U8):
        raise Unsupported(f"{name!r} is {x.type.dtype}")
    return call.scope.share(value, "whole", lambda: as_whole(call, x))


def as_whole(call: Call, x: Node) -> Node:
    """``whole`` of a node of int8 or uint8."""
    offset = WHOLE.dtype.limits[0] - x.type.dtype.limits[0]
    return recoded(call.derived("whole"), x, WHOLE, offset, call.scope)


@dataclass(frozen=True)
class ZeroPoint:
    """The excess of ``whole`` over the integers that count: a scalar node, or a known number."""

    node: Node | None
    less: int

    @staticmethod
    def of(call: Call, position: int) -> ZeroPoint:
        value = call.value(0)
        unsigned = isinstance(value, Quantized) and value.offset == 128
        if not isinstance(value, Quantized):
            unsigned = call.tensor(0).type.dtype is DType.U8
        less = 128 if unsigned else 0
        if not call.has(position):
            return ZeroPoint(None, less)
        if prod(call.shape(position)) != 1:
            raise Unsupported("its first operand has a zero point for each row")
        if call.is_known(position):
            known = int(call.array(position, "zero point").reshape(()))
            return ZeroPoint(None, less - known)
        return ZeroPoint(call.tensor(position), less)

    def expression(self, index: int) -> Expr:
        """``128 - zero_point``, with the node at this place among the operands."""
        less = iconst(self.less)
        return less if self.node is None else fn("isub", less, arg(index))


def products(
    call: Call, weights: Array, product: Callable[[str, slice, Array], Node]
) -> list[Node]:
    """Products with int8 weights along their second last axis that add up to the one asked for."""
    made = []
    for layer in layers_of(weights):
        for part in exact_parts(layer):
            made.append(product(call.derived("sum"), part, layer[..., part, :]))
    return made


def lowered(weights: Array) -> tuple[Array, Array]:
    """Weights of channels (last axis) as int8 plus a number for each: 0 where they are int8."""
    axes = tuple(range(weights.ndim - 1))
    least, most = weights.min(axis=axes), weights.max(axis=axes)
    lowest, highest = DType.I8.limits
    fits = (lowest <= least) & (most <= highest)
    less = np.where(fits | (most - least > highest - lowest), 0, least - lowest).astype(np.int32)
    return weights - less, less


def layers_of(weights: Array) -> Iterator[Array]:
    """int8 that add up to the weights: one layer, or up to three."""
    layer = np.clip(weights, *DType.I8.limits)
    yield layer
    while (weights := weights - layer).any():
        layer = np.clip(weights, *DType.I8.limits)
        yield layer


def exact_parts(weights: Array) -> Iterator[slice]:
    """Runs along the second last axis in which no sum of products with int8 passes ``EXACT``."""
    worst = 128 * np.abs(weights.astype(np.int64))
    columns = worst.reshape(-1, *weights.shape[-2:]).sum(axis=0)
    start, total = 0, np.zeros(weights.shape[-1], np.int64)
    for index, row in enumerate(columns):
        if (total + row > EXACT).any():
            yield slice(start, index)
            start, total = index, np.zeros_like(total)
        total = total + row
    yield slice(start, len(columns))


def known_weights(call: Call, w: Array) -> Constant:
    value = np.ascontiguousarray(w, np.int8)
    return Constant(name=call.derived("weights"), value=value, element=WHOLE)


@dataclass
class Terms:
    """Summands of the product: the sum of ``products``, the sum of ``inputs`` (of x alone) times
    ``less``, and ``totals`` of the weights times the difference of x."""

    totals: Array
    less: Array
    products: list[Node]
    inputs: list[Node] = field(default_factory=list)

    def summed(self, name: str, call: Call, point: ZeroPoint) -> Node:
        """The terms added in int32."""
        args = [*self.products, *self.inputs]
        value = added(range(len(self.products)))
        if self.inputs:
            inputs = added(range(len(self.products), len(args)))
            value = fn("iadd", value, fn("imul", inputs, arg(len(args))))
            args.append(Constant(name=call.derived("less"), value=self.less))
        if point.node is not None or point.less:
            count = len(args)
            known = np.rint(self.totals).astype(np.int32)
            args.append(Constant(name=call.derived("totals"), value=known))
            if point.node is not None:
                scalar = Reshape(name=call.derived("zero_point"), x=point.node, shape=())
                args.append(scalar)
            shift = fn("imul", point.expression(count + 1), arg(count))
            value = fn("iadd", value, shift)
        return Elementwise(name=name, args=tuple(args), expression=value, out=SUMS)


def added(indices: Iterable[int]) -> Expr:
    """The sum of operands that hold integers."""
    return reduce(lambda a, b: fn("iadd", a, b), [fn("int", arg(i)) for i in indices])
