"""Importers of integer products with parameters computed at run time.

MatMulInteger and ConvInteger give the exact int32 sum of ``(x - x_zero_point) * (w -
w_zero_point)``, as operators of the graph: ``x`` as int8 of scale 1, ``x - 128`` for uint8; an int8
product of that and the weights, in pieces whose sums float32 holds exactly; the pieces added in
int32, with ``(128 - x_zero_point) * sum(w)``.  Weights that are not int8 around their zero point
are kept lower by a number for each channel, which is multiplied with the sum of ``x``.

DynamicQuantizeLinear and DynamicQuantizeLSTM compute their parameters in the graph, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod

import numpy as np

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer, recode
from quantglow.importer.onnx.nodes.values import IntegerValue, as_float32
from quantglow.importer.onnx.operators.nn.convolution import (
    auto_padded,
    image_kernel,
    image_size,
    parse_windows,
)
from quantglow.importer.onnx.operators.rnn import (
    LSTM_FUNCTIONS,
    Cell,
    build_cells,
    lstm_nodes,
    sequence_lengths,
)
from quantglow.importer.onnx.operators.tensor.shape import from_nhwc, to_nhwc
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv, Elementwise, Gemm, ReduceMax, ReduceMin, Reshape, Slice
from quantglow.ir.ops.expression import Expr, arg, const, iconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.windows import Images, conv2d, fixed_pads, has_padding
from quantglow.ir.symbolic.size import decide
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array

EXACT = 2**24
"""float32 holds every integer up to this one."""

WHOLE = ElementType(DType.I8, QuantParams.per_tensor(1.0, 0))
"""int8 that stand for themselves."""

SUMS = ElementType(DType.I32)

FLOAT, CODES = ElementType(DType.F32), ElementType(DType.U8)


def rows_times_weights(call: Call, name: str, x: Node, point: ZeroPoint, weights: Array) -> Node:
    """``whole`` integers x [..., K] times weights [K, N] that are known and centered, int32.
    Raises ``ValueError`` for another K."""
    *batch, k = x.type.shape
    if decide(k != len(weights)):
        raise ValueError(f"x has {k} columns, but the weights have {len(weights)} rows")
    rows = Reshape(name=call.derive("rows"), x=x, shape=(prod(batch), k))

    def product(name: str, part: slice, w: Array) -> Node:
        start, size = part.start, part.stop - part.start
        piece: Node = rows
        if decide(size < k):
            piece = Slice(
                name=call.derive("piece"),
                x=rows,
                starts=(0, start),
                sizes=(rows.shape[0], size),
                steps=(1, 1),
            )
        return Gemm(name=name, x=piece, w=_known_weights(call, w))

    codes, less = _lower(weights)
    terms = Terms(weights.sum(axis=0), less, _products(call, codes, product))
    if less.any():
        terms.inputs += _products(call, np.ones((k, 1), np.int32), product)
    if len(batch) == 1:
        return terms.add_up(name, call, point)
    total = terms.add_up(call.derive("total"), call, point)
    return Reshape(name=name, x=total, shape=(*batch, weights.shape[1]))


def center_weights(call: Call, position: int, zero_point: int) -> Array:
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
    x = value.node if isinstance(value, IntegerValue) else call.tensor(position)
    if x.type.dtype not in (DType.I8, DType.U8):
        raise Unsupported(f"{name!r} is {x.type.dtype}")
    return call.scope.share(value, "whole", lambda: _as_whole(call, x))


def _as_whole(call: Call, x: Node) -> Node:
    """``whole`` of a node of int8 or uint8."""
    offset = WHOLE.dtype.limits[0] - x.type.dtype.limits[0]
    return recode(call.derive("whole"), x, WHOLE, offset, call.scope)


@dataclass(frozen=True)
class ZeroPoint:
    """The excess of ``whole`` over the integers that count: a scalar node, or a number."""

    node: Node | None
    less: int

    @staticmethod
    def of(call: Call, position: int) -> ZeroPoint:
        value = call.value(0)
        unsigned = isinstance(value, IntegerValue) and value.offset == 128
        if not isinstance(value, IntegerValue):
            unsigned = call.tensor(0).type.dtype is DType.U8
        less = 128 if unsigned else 0
        if not call.has(position):
            return ZeroPoint(None, less)
        if decide(prod(call.shape(position)) != 1):
            raise Unsupported("its first operand has a zero point for each row")
        if call.is_known(position):
            zero_point = int(call.array(position, "zero point").reshape(()))
            return ZeroPoint(None, less - zero_point)
        return ZeroPoint(call.tensor(position), less)

    def expression(self, index: int) -> Expr:
        """``128 - zero_point``, with the node at this place among the operands."""
        less = iconst(self.less)
        return less if self.node is None else fn("isub", less, arg(index))


def _products(
    call: Call, weights: Array, product: Callable[[str, slice, Array], Node]
) -> list[Node]:
    """Products with int8 weights along their second last axis that add up to the one asked for."""
    pieces = []
    for layer in _weight_layers(weights):
        for part in _exact_parts(layer):
            pieces.append(product(call.derive("sum"), part, layer[..., part, :]))
    return pieces


def _lower(weights: Array) -> tuple[Array, Array]:
    """Weights of channels (last axis) as int8 plus a number for each: 0 where they are int8."""
    axes = tuple(range(weights.ndim - 1))
    least, most = weights.min(axis=axes), weights.max(axis=axes)
    lowest, highest = DType.I8.limits
    fits = (lowest <= least) & (most <= highest)
    less = np.where(fits | (most - least > highest - lowest), 0, least - lowest).astype(np.int32)
    return weights - less, less


def _weight_layers(weights: Array) -> Iterator[Array]:
    """int8 that add up to the weights: one layer, or up to three."""
    layer = np.clip(weights, *DType.I8.limits)
    yield layer
    while (weights := weights - layer).any():
        layer = np.clip(weights, *DType.I8.limits)
        yield layer


def _exact_parts(weights: Array) -> Iterator[slice]:
    """Runs along the second last axis in which no sum of products with int8 passes ``EXACT``."""
    # |x| <= 128, so no order of adding can pass the sum of 128 |w|: below 2^24 float32 is exact.
    worst = 128 * np.abs(weights.astype(np.int64))
    columns = worst.reshape(-1, *weights.shape[-2:]).sum(axis=0)
    start, total = 0, np.zeros(weights.shape[-1], np.int64)
    for index, row in enumerate(columns):
        if (total + row > EXACT).any():
            yield slice(start, index)
            start, total = index, np.zeros_like(total)
        total = total + row
    yield slice(start, len(columns))


def _known_weights(call: Call, w: Array) -> Constant:
    value = np.ascontiguousarray(w, np.int8)
    return Constant(name=call.derive("weights"), value=value, element=WHOLE)


@dataclass
class Terms:
    """Summands of the product: the sum of ``pieces``, the sum of ``inputs`` (of x alone) times
    ``less``, and ``totals`` of the weights times the difference of x."""

    totals: Array
    less: Array
    pieces: list[Node]
    inputs: list[Node] = field(default_factory=list)

    def add_up(self, name: str, call: Call, point: ZeroPoint) -> Node:
        """The terms added in int32."""
        args = [*self.pieces, *self.inputs]
        value = add(range(len(self.pieces)))
        if self.inputs:
            inputs = add(range(len(self.pieces), len(args)))
            value = fn("iadd", value, fn("imul", inputs, arg(len(args))))
            args.append(Constant(name=call.derive("less"), value=self.less))
        if point.node is not None or point.less:
            count = len(args)
            totals = np.rint(self.totals).astype(np.int32)
            args.append(Constant(name=call.derive("totals"), value=totals))
            if point.node is not None:
                scalar = Reshape(name=call.derive("zero_point"), x=point.node, shape=())
                args.append(scalar)
            shift = fn("imul", point.expression(count + 1), arg(count))
            value = fn("iadd", value, shift)
        return Elementwise(name=name, args=tuple(args), expression=value, out=SUMS)


def add(indices: Iterable[int]) -> Expr:
    """The sum of operands that hold integers."""
    return reduce(lambda a, b: fn("iadd", a, b), [fn("int", arg(i)) for i in indices])


@importer("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> Sequence[Node]:
    return _dynamically_quantized(call, call.node(0), [call.result_name(i) for i in range(3)])


def _dynamically_quantized(call: Call, x: Node, names: Sequence[str]) -> tuple[Node, Node, Node]:
    """uint8 codes of a range found at run time that includes 0, its scale and its zero point."""
    axes = tuple(range(x.type.rank))
    lowest = ReduceMin(name=call.derive("lowest"), x=x, axes=axes, keepdims=False)
    highest = ReduceMax(name=call.derive("highest"), x=x, axes=axes, keepdims=False)
    low, high = fn("min", arg(0), const(0)), fn("max", arg(1), const(0))
    width = fn("div", fn("sub", high, low), const(255))
    scale = Elementwise(
        name=names[1],
        args=(lowest, highest),
        expression=fn("select", fn("eq", high, low), const(1), width),
        out=FLOAT,
    )
    shift = fn("sub", const(0), fn("div", low, arg(1)))
    zero_point = Elementwise(
        name=names[2],
        args=(lowest, scale),
        expression=fn("int", _round_within(shift, const(0), const(255))),
        out=CODES,
    )
    point = fn("float", arg(2))
    steps = _round_within(
        fn("div", arg(0), arg(1)), fn("sub", const(0), point), fn("sub", const(255), point)
    )
    codes = Elementwise(
        name=names[0],
        args=(x, scale, zero_point),
        expression=fn("iadd", fn("int", steps), arg(2)),
        out=CODES,
    )
    return codes, scale, zero_point


def _round_within(value: Expr, low: Expr, high: Expr) -> Expr:
    return fn("rint", fn("fmin", fn("fmax", value, low), high))


@importer("MatMulInteger")
def mat_mul_integer(call: Call) -> Node:
    """x [..., K] times known weights [K, N]."""
    weights = center_weights(call, 1, 3)
    if weights.ndim != 2:
        raise Unsupported("its second operand is no matrix")
    x, point = whole(call, 0), ZeroPoint.of(call, 2)
    return rows_times_weights(call, call.result, x, point, weights)


@importer("ConvInteger")
def conv_integer(call: Call) -> Node:
    """Padding counts as the zero point: the sum of weights is that of the kernel offsets inside."""
    weights = image_kernel(center_weights(call, 1, 3)).transpose(2, 3, 1, 0)
    point = ZeroPoint.of(call, 2)
    x = to_nhwc(call, x=whole(call, 0))
    windows = parse_windows(call, call.shape(1)[2:])
    pads = auto_padded(call, windows, image_size(x))
    group = call.integer("group", 1)
    strides, dilations = windows.strides, windows.dilations

    def product(name: str, part: slice, w: Array) -> Node:
        if w.shape[2] < weights.shape[2]:
            raise Unsupported("its sums do not fit float32")
        return Conv(
            name=name,
            x=x,
            w=_known_weights(call, w),
            strides=strides,
            pads=pads,
            dilations=dilations,
            group=group,
        )

    codes, less = _lower(weights) if group == 1 else (weights, np.zeros(1, np.int32))
    height, width = image_size(x)
    top, left, bottom, right = fixed_pads(pads)
    call.reserve((height + top + bottom, width + left + right, x.type.shape[-1]), 8)
    image = np.ones((1, *x.type.fixed_shape[1:]))
    inside = np.pad(image, ((0, 0), (top, bottom), (left, right), (0, 0)))
    totals = conv2d(Images.of(inside), weights.astype(np.float64), strides, dilations, group)
    totals = totals if has_padding(pads) else totals[:, :1, :1]
    terms = Terms(totals, less, _products(call, codes, product))
    if less.any():
        terms.inputs += _products(call, np.ones_like(codes[..., :1]), product)
    return from_nhwc(call, terms.add_up(call.result, call, point))


@dataclass(frozen=True, kw_only=True)
class QuantizedCell(Cell):
    """A cell with integer weights around 0 and their scales, [1] or [4 * H].

    The input of all steps, and the hidden state [B, H] of each, are uint8 with one scale for the
    whole tensor: onnxruntime's meaning on one thread (on more it may cut the batch first).
    """

    w_scales: Array
    r_scales: Array

    def from_input(self, x: Node) -> Node:
        return self.real_product("projected", x, self.w, "W", self.w_scales)

    def gates(self, x: Node, h: Node) -> Node:
        product = self.real_product("state", h, self.r, "R", self.r_scales)
        bias = self.constant("b", (self.input_bias + self.state_bias).astype(np.float32))
        return self.add(self.add(x, product), bias)

    def most_unrolled(self, x: Node) -> int:
        return 1

    def real_product(self, tag: str, x: Node, w: Array, kind: str, scales: Array) -> Node:
        """``float(sum) * (scale * scales)`` of x, which is quantized first, and the weights."""
        call = self.call
        names = [call.derive(f"{tag}-{part}") for part in ("codes", "scale", "zero_point")]
        codes, scale, point = _dynamically_quantized(call, x, names)
        whole = _as_whole(call, codes)
        sums = rows_times_weights(call, call.derive(f"{tag}-sums"), whole, ZeroPoint(point, 128), w)
        return Elementwise(
            name=call.derive(tag),
            args=(sums, scale, self.constant(f"{kind}-scales", scales)),
            expression=fn("mul", fn("float", arg(0)), fn("mul", arg(1), arg(2))),
            out=ElementType(DType.F32),
        )


@importer(f"{MICROSOFT}.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(call: Call) -> list[Node]:
    """LSTM with weights W [D, I, 4 * H] and R [D, H, 4 * H] of int8 or uint8."""
    if sequence_lengths(call, *call.shape(0)[:2]) is not None:
        raise Unsupported("its states have one range for sequences of different lengths")
    w, r = (call.array(position, "weight").astype(np.int32) for position in (1, 2))
    w, r = w - _zero_points(call, 9), r - _zero_points(call, 11)
    w_scales, r_scales = (as_float32(call.array(position, "scale")) for position in (8, 10))
    cells = build_cells(call, 4, LSTM_FUNCTIONS, w, r)
    quantized_cells = [
        QuantizedCell(
            **vars(cell), w_scales=w_scales[d].reshape(-1), r_scales=r_scales[d].reshape(-1)
        )
        for d, cell in enumerate(cells)
    ]
    return lstm_nodes(call, quantized_cells)


def _zero_points(call: Call, position: int) -> Array:
    """Zero points that broadcast to the weights [D, I, 4 * H].  Raises ``ValueError`` where the
    operator has none: it has one for each direction, 0 for int8."""
    points = call.array(position, "zero point").astype(np.int32)
    flat = points.reshape(len(points), -1)
    if (flat != flat[:, :1]).any():
        raise ValueError("the zero points of a direction differ")
    return flat[:, None, :1]
