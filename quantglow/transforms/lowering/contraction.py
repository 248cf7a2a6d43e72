"""Lowering of convolutions, transposed ones included, and products to Conv and MatMul.

Convolutions read explicitly padded tensors; products become batched ``MatMul``.  A transposed
convolution becomes a convolution: with a stride of s every s-th result along an axis is a
convolution of its own, with every s-th tap of the kernel: its *phase*.  All phases read the same
pixels, so they are output channels of one convolution, and no product with a zero between pixels is
ever made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    Concat,
    Conv,
    ConvTranspose,
    Elementwise,
    Expand,
    Gemm,
    MatMul,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from quantglow.ir.ops.binary import Add
from quantglow.ir.ops.expression import arg, call, clip
from quantglow.ir.ops.windows import has_padding
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    Size,
    decide,
    decide_equal,
    decide_max,
    prod,
)
from quantglow.ir.types import DType, ElementType, QuantParams
from quantglow.support.arrays import Array
from quantglow.support.errors import BackendError
from quantglow.transforms.lowering.rules import lowers, tag

FEW_CHANNELS = 16
"""Narrower rows of phases are computed together and moved apart: a vector holds so many sums."""

MOST_PHASES = 1024
"""Maximum number of phases: each may be a convolution, and weights of its own."""


@lowers(Conv)
def lower_conv(node: Conv) -> Node | None:
    """Conv(x, pads) -> Conv(Pad(x)); b becomes zeros where it is absent"""
    require_constant(node, node.w)
    changes: dict[str, Any] = {}
    if has_padding(node.pads):
        top, left, bottom, right = node.pads
        pad = Pad(
            name=tag(node, "pad"), x=node.x, before=(0, top, left, 0), after=(0, bottom, right, 0)
        )
        changes.update(x=pad, pads=(0, 0, 0, 0))
    if node.b is None:
        changes.update(b=_zero_bias(node, node.type.shape[-1]))
    return replace(node, **changes) if changes else None


def _zero_bias(node: Conv | ConvTranspose | Gemm, channels: Dim) -> Constant:
    """The bias of a contraction that has none."""
    numpy_type = np.float32 if node.w.type.dtype is DType.F32 else np.int32
    return Constant(name=tag(node, "bias"), value=np.zeros(channels, numpy_type))


def require_constant(node: Node, weights: Node) -> Constant:
    if isinstance(weights, Constant):
        return weights
    raise BackendError(
        f"{node.op} {node.name!r}: its weights {weights.name!r} are computed at run time; "
        "only constant weights can be compiled"
    )


@lowers(Gemm)
def lower_gemm(node: Gemm) -> Node:
    """x @ w + b -> Conv 1x1 on an image of one row; MatMul and Add where w is not constant"""
    if not isinstance(node.w, Constant):
        return _gemm_of_activations(node)
    (rows, k), columns = node.x.type.shape, node.type.shape[1]
    conv = Conv(
        name=tag(node, "conv"),
        x=Reshape(name=tag(node, "image"), x=node.x, shape=(1, 1, rows, k)),
        w=_reshape_weights(node, node.w, (1, 1, k, columns)),
        b=node.b if node.b is not None else _zero_bias(node, columns),
        activation=node.activation,
        low=node.low,
        high=node.high,
        out=node.out,
    )
    return Reshape(name=node.name, x=conv, shape=node.type.shape)


def _gemm_of_activations(node: Gemm) -> Node:
    if node.w.type.quant is not None:
        require_constant(node, node.w)
    product = MatMul(name=tag(node, "product"), x=node.x, y=node.w)
    b = node.b if node.b is not None else _zero_bias(node, node.type.shape[1])
    if node.activation is None:
        return Add(name=node.name, x=product, y=b, low=node.low, high=node.high)
    value = node.activation.expression().substitute([call("add", arg(0), arg(1))])
    bounded = clip(value, node.low, node.high).rounded()
    return Elementwise(
        name=node.name, args=(product, b), expression=bounded, out=ElementType(DType.F32)
    )


def _reshape_weights(node: Node, w: Constant, shape: Shape) -> Constant:
    element = w.element
    if element is not None and element.quant is not None and element.quant.axis is not None:
        element = ElementType(element.dtype, replace(element.quant, axis=len(shape) - 1))
    return Constant(name=tag(node, "weights"), value=w.value.reshape(shape), element=element)


@lowers(MatMul)
def lower_matmul(node: MatMul) -> Node | None:
    """MatMul of any rank -> MatMul of [B, M, K] and [B, K, N]; a sum of nothing is zero"""
    depth = node.x.type.shape[-1]
    if not isinstance(depth, Size) and depth == 0:
        return _sum_of_nothing(node)
    x, y = node.x.type, node.y.type
    if x.rank == y.rank == 3 and decide(x.shape[0] == y.shape[0]):
        return None
    batch = node.type.shape[:-2]
    left, right = _batch(node, node.x, batch, "x"), _batch(node, node.y, batch, "y")
    product = replace(node, name=tag(node, "batched"), x=left, y=right)
    return Reshape(name=node.name, x=product, shape=node.type.shape)


def _sum_of_nothing(node: MatMul) -> Node:
    """Zero in the integers of the result, everywhere."""
    numpy_type = node.x.type.dtype.numpy
    zero = node.reference(np.zeros((1, 0), numpy_type), np.zeros((0, 1), numpy_type))
    value = Constant(name=tag(node, "zero"), value=zero, element=node.type.element)
    return Expand(name=node.name, x=value, shape=node.type.shape)


def _batch(node: Node, operand: Node, batch: Shape, role: str) -> Node:
    matrix = operand.type.shape[-2:]
    if not decide_equal(operand.type.shape[:-2], batch):
        operand = Expand(name=tag(node, f"{role}-expanded"), x=operand, shape=(*batch, *matrix))
        # A broadcast batch is copied once: kernels want one stride for the batch.
        operand = Elementwise(
            name=tag(node, f"{role}-copied"),
            args=(operand,),
            expression=arg(0),
            out=operand.type.element,
        )
    return Reshape(name=tag(node, role), x=operand, shape=(prod(batch), *matrix))


@lowers(ConvTranspose)
def lower_conv_transpose(node: ConvTranspose) -> Node:
    """ConvTranspose(x, w) -> a Conv for the phases of each row, or on x with zeros in between"""
    w = require_constant(node, node.w)
    if _has_phases(node):
        return _by_phases(node, w)
    flipped = replace(w, name=tag(node, "flipped"), value=w.value[::-1, ::-1].copy())
    before, after = node.equivalent_pads()
    # _spread leaves stride - 1 zeros after the last element too.
    after = (after[0] - node.strides[0] + 1, after[1] - node.strides[1] + 1)
    return Conv(
        name=node.name,
        x=_fit(node, _spread(node), before, after),
        w=flipped,
        b=_bias(node),
        dilations=node.dilations,
        group=node.group,
        activation=node.activation,
        low=node.low,
        high=node.high,
        out=node.out,
    )


def _has_phases(node: ConvTranspose) -> bool:
    """Whether phases are few convolutions of one group of neighboring taps."""
    plain = node.dilations == (1, 1) and node.group == 1 and isinstance(_bias(node), Constant)
    inside = all(p < s for p, s in zip(node.output_padding, node.strides, strict=True))
    return 1 < node.strides[0] * node.strides[1] <= MOST_PHASES and plain and inside


def _bias(node: ConvTranspose) -> Node:
    return node.b if node.b is not None else _zero_bias(node, node.type.shape[3])


def _spread(node: ConvTranspose) -> Node:
    """Zeros after every element along H and W: Pad on [N, H, 1, W, 1, C]."""
    (n, h, w, c), (sh, sw) = node.x.type.shape, node.strides
    if (sh, sw) == (1, 1):
        return node.x
    cells = Reshape(name=tag(node, "cells"), x=node.x, shape=(n, h, 1, w, 1, c))
    after = (0, 0, sh - 1, 0, sw - 1, 0)
    padded = Pad(name=tag(node, "spread"), x=cells, before=(0,) * 6, after=after)
    return Reshape(name=tag(node, "grid"), x=padded, shape=(n, h * sh, w * sw, c))


def _fit(node: Node, x: Node, before: Shape, after: Shape) -> Node:
    """Zeros around x, cut where a pad is negative."""
    cut_before, cut_after = (tuple(decide_max(-p, 0) for p in pair) for pair in (before, after))
    if any(decide(cut != 0) for cut in (*cut_before, *cut_after)):
        n, h, w, c = x.type.shape
        sizes = (n, h - cut_before[0] - cut_after[0], w - cut_before[1] - cut_after[1], c)
        starts = (0, *cut_before, 0)
        x = Slice(name=tag(node, "crop"), x=x, starts=starts, sizes=sizes, steps=(1,) * 4)
    wide_before, wide_after = (
        (0, decide_max(p, 0), decide_max(q, 0), 0) for p, q in (before, after)
    )
    if not any(decide(pad != 0) for pad in (*wide_before, *wide_after)):
        return x
    return Pad(name=tag(node, "pad"), x=x, before=wide_before, after=wide_after)


# -- by phases


@dataclass(frozen=True)
class _Axis:
    """One axis: results ``first * stride`` up to ``(last + 1) * stride`` hold those asked for.

    Counted from the first result without pads.  Each of the ``cells`` has a result of every phase,
    a sum over ``taps`` pixels.
    """

    stride: int
    kernel: int
    taps: int
    first: Dim
    last: Dim
    cut: Dim

    @staticmethod
    def of(node: ConvTranspose, axis: int) -> _Axis:
        stride, kernel, pad = node.strides[axis], node.w.type.fixed_shape[axis], node.pads[axis]
        first, last = pad // stride, (pad + node.type.shape[axis + 1] - 1) // stride
        return _Axis(stride, kernel, -(-kernel // stride), first, last, pad - first * stride)

    @property
    def is_even(self) -> bool:
        """Whether all phases have the same number of taps."""
        return self.kernel % self.stride == 0

    def of_phase(self, phase: int) -> _Axis:
        """The axis with the taps of one phase only."""
        return replace(self, taps=len(range(phase, self.kernel, self.stride)))

    @property
    def cells(self) -> Dim:
        return self.last - self.first + 1

    def pads(self, length: Dim) -> tuple[Dim, Dim]:
        """Zeros that the convolution needs before and after ``length`` pixels; may be negative."""
        return self.taps - 1 - self.first, self.last - (length - 1)


def _by_phases(node: ConvTranspose, w: Constant) -> Node:
    rows, columns = _Axis.of(node, 0), _Axis.of(node, 1)
    if node.x.type.quant is None and not (rows.is_even and columns.is_even):
        return _cut(node, _by_single_phases(node, w, rows, columns), rows, columns)
    n, height, width, _ = node.x.type.shape
    pads = zip(rows.pads(height), columns.pads(width), strict=True)
    x = _fit(node, node.x, *pads)
    weights = _phase_weights(w.value, rows, columns)
    channels = columns.stride * node.type.fixed_shape[3]
    if channels < FEW_CHANNELS:
        conv = _phase_conv(node, w, x, weights, "phases")
        phases = (n, rows.cells, columns.cells, rows.stride, channels)
        split = Reshape(name=tag(node, "split"), x=conv, shape=phases)
        joined: Node = Transpose(name=tag(node, "apart"), x=split, perm=(0, 1, 3, 2, 4))
    else:
        shape = (n, rows.cells, 1, columns.cells * channels)
        parts = []
        for row in range(rows.stride):
            conv = _phase_conv(node, w, x, weights[:, :, :, row : row + 1], f"row{row}")
            parts.append(Reshape(name=tag(node, f"cells{row}"), x=conv, shape=shape))
        joined = Concat(name=tag(node, "rows"), parts=tuple(parts), axis=2)
    return _cut(node, joined, rows, columns)


def _phase_weights(w: Array, rows: _Axis, columns: _Axis) -> Array:
    """[row taps, column taps, C, row phase, column phase, O]; absent taps are zero."""
    kh, kw, c, o = w.shape
    missing = (rows.taps * rows.stride - kh, columns.taps * columns.stride - kw)
    padded = np.pad(w, ((0, missing[0]), (0, missing[1]), (0, 0), (0, 0)))
    shape = (rows.taps, rows.stride, columns.taps, columns.stride, c, o)
    return padded.reshape(shape)[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5)


def _by_single_phases(node: ConvTranspose, w: Constant, rows: _Axis, columns: _Axis) -> Node:
    """[N, row cells, row phases, column cells, column phases, O]: a convolution for each phase.

    Products with absent taps would make NaN of infinities.
    """
    shape = (node.type.shape[0], rows.cells, 1, columns.cells, 1, node.type.shape[3])
    lines = []
    for row in range(rows.stride):
        parts = [
            Reshape(
                name=tag(node, f"cells{row}.{column}"),
                x=_single_phase(node, w, (rows, row), (columns, column)),
                shape=shape,
            )
            for column in range(columns.stride)
        ]
        lines.append(Concat(name=tag(node, f"line{row}"), parts=tuple(parts), axis=4))
    return Concat(name=tag(node, "lines"), parts=tuple(lines), axis=2)


def _single_phase(
    node: ConvTranspose, w: Constant, row: tuple[_Axis, int], column: tuple[_Axis, int]
) -> Node:
    """The results of one phase of rows and one of columns; the bias where it reads no pixel."""
    (rows, i), (columns, j) = row, column
    role, o = f"phase{i}.{j}", w.value.shape[3]
    value = w.value[i :: rows.stride, j :: columns.stride][::-1, ::-1].copy()
    phases, sizes = (rows.of_phase(i), columns.of_phase(j)), node.x.type.shape[1:3]
    pads = [axis.pads(size) for axis, size in zip(phases, sizes, strict=True)]
    reads = (decide(before + size > 0) for (before, _), size in zip(pads, sizes, strict=True))
    if value.size and all(reads):
        weights = value[:, :, :, None, None]
        return _phase_conv(node, w, _fit(node, node.x, *zip(*pads, strict=True)), weights, role)
    nothing = Constant(name=tag(node, f"{role}-nothing"), value=np.zeros((1, 1, 1, 1), np.float32))
    weights = np.zeros((1, 1, 1, 1, 1, o), w.value.dtype)
    shape = (node.type.shape[0], rows.cells, columns.cells, o)
    conv = _phase_conv(node, w, nothing, weights, role)
    return Expand(name=tag(node, f"{role}-filled"), x=conv, shape=shape)


def _phase_conv(node: ConvTranspose, w: Constant, x: Node, weights: Array, role: str) -> Conv:
    """The convolution of some row phases [KH, KW, C, row phases, column phases, O]."""
    copies = weights.shape[3] * weights.shape[4]
    value = weights.reshape(*weights.shape[:3], -1)
    bias = _bias(node)
    assert isinstance(bias, Constant)
    return Conv(
        name=tag(node, role),
        x=x,
        w=Constant(
            name=tag(node, f"{role}-weights"), value=value, element=_repeat(w.element, copies)
        ),
        b=replace(bias, name=tag(node, f"{role}-bias"), value=np.tile(bias.value, copies)),
        activation=node.activation,
        low=node.low,
        high=node.high,
        out=node.out,
    )


def _repeat(element: ElementType | None, copies: int) -> ElementType | None:
    """Parameters for ``copies`` of every channel, one after the other."""
    if element is None or element.quant is None or element.quant.axis is None:
        return element
    params = element.quant
    wider = QuantParams(params.scales * copies, params.zero_points * copies, params.axis)
    return replace(element, quant=wider)


def _cut(node: ConvTranspose, joined: Node, rows: _Axis, columns: _Axis) -> Node:
    """All cells as an image, without the results that pads take away."""
    n, _, _, o = node.type.shape
    whole = (n, rows.cells * rows.stride, columns.cells * columns.stride, o)
    if decide_equal(whole, node.type.shape):
        return Reshape(name=node.name, x=joined, shape=whole)
    image = Reshape(name=tag(node, "whole"), x=joined, shape=whole)
    starts = (0, rows.cut, columns.cut, 0)
    return Slice(name=node.name, x=image, starts=starts, sizes=node.type.shape, steps=(1,) * 4)
