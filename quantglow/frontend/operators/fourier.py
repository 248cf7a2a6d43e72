"""Importers of DFT and STFT."""

from __future__ import annotations

import numpy as np

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.shape import normal
from quantglow.frontend.operators.slicing import along
from quantglow.frontend.operators.transforms import Transform, transformed
from quantglow.graph.node import Constant, Node
from quantglow.ops import Conv, Gather, Mul, Reshape, Transpose

MOST_IN_KERNELS = 2**19
"""Elements of a matrix up to which a Conv, which reads frames where they are, is faster than two
stages on frames laid side by side: 723 real samples."""


@importer("DFT")
def dft(call: Call) -> Node:
    """Samples beyond ``dft_length`` are cut off, missing ones are 0."""
    x, last = call.node(0), call.node(0).type.rank - 1
    default = call.integer("axis", 1) if call.opset < 20 else -2
    (axis,) = normal((scalar(call, 2, "axis", default),), x.type.rank)
    if axis == last:
        raise ValueError(f"axis {axis} holds the parts of numbers")
    transform = transform_of(call, x.type.shape[axis], x.type.shape[-1])
    if transform.samples < x.type.shape[axis]:
        x = along(call.derived("used"), x, axis, range(transform.samples))
    if axis == last - 1:
        return transformed(call, x, transform, call.result)
    perm = (*(i for i in range(last) if i != axis), axis, last)
    moved = Transpose(name=call.derived("moved"), x=x, perm=perm)
    made = transformed(call, moved, transform, call.derived("bins"))
    back = tuple(perm.index(i) for i in range(x.type.rank))
    return Transpose(name=call.result, x=made, perm=back)


def transform_of(call: Call, size: int, parts: int) -> Transform:
    """That of ``size`` samples or bins, with the attributes of a DFT."""
    backwards, onesided = bool(call.integer("inverse", 0)), bool(call.integer("onesided", 0))
    if onesided and parts != 1 + backwards:
        raise Unsupported("onesided is the transform of real numbers, or the one back to them")
    n = scalar(call, 1, "dft_length", 2 * (size - 1) if onesided and backwards else size)
    if n < 1 or parts not in (1, 2):
        raise Unsupported(f"of length {n}, and {parts} parts of a number")
    call.reserve((min(size, n),), 8)
    if not backwards:
        bins = n // 2 + 1 if onesided else n
        return Transform(n, bins, np.ones(min(size, n)), (parts, 2))
    if not onesided:
        return Transform(n, n, np.ones(min(size, n)), (parts, 2), 1, 1 / n)
    halves = np.arange(min(size, n // 2 + 1))
    # Bins of the other half are the conjugates of these, but for the first and the middle one.
    weights = np.where(halves * 2 % n == 0, 1.0, 2.0)
    return Transform(n, n, weights, (2, 1), 1, 1 / n)


def scalar(call: Call, position: int, role: str, default: int) -> int:
    return int(call.array(position, role).reshape(())) if call.has(position) else default


@importer("STFT")
def stft(call: Call) -> Node:
    """Frames of the signal times the window, each transformed."""
    shape = call.shape(0)
    if len(shape) not in (2, 3):
        raise Unsupported(f"of a signal of shape {shape}")
    batch, length, parts = (*shape, 1)[:3]
    step = scalar(call, 1, "frame_step", 0)
    n = scalar(call, 3, "frame_length", call.shape(2)[0] if call.has(2) else length)
    onesided = bool(call.integer("onesided", 1))
    if parts not in (1, 2) or (onesided and parts == 2) or step < 1 or not 0 < n <= length:
        raise Unsupported(f"frames of {n} in steps of {step} of a signal of shape {shape}")
    window = call.array(2, "window") if call.has(2) and call.is_known(2) else np.ones(n)
    if window.shape != (n,):
        raise ValueError(f"the window has shape {window.shape}, a frame {n} samples")
    signal = Reshape(name=call.derived("signal"), x=call.node(0), shape=(batch, length, parts))
    transform = Transform(n, n // 2 + 1 if onesided else n, window, (parts, 2))
    is_computed = call.has(2) and not call.is_known(2)
    if not is_computed and (transform.split is None or transform.dense_size <= MOST_IN_KERNELS):
        return in_one_product(call, signal, transform, step)
    x: Node = frames(call, signal, n, step)
    if is_computed:
        factors = Reshape(name=call.derived("window"), x=call.node(2), shape=(n, 1))
        x = Mul(name=call.derived("windowed"), x=x, y=factors)
    return transformed(call, x, transform, call.result)


def in_one_product(call: Call, x: Node, transform: Transform, step: int) -> Node:
    """A Conv: the columns of the matrix are its kernels."""
    transform.check()
    batch, length, parts = x.type.shape
    image = Reshape(name=call.derived("image"), x=x, shape=(batch, 1, length, parts))
    kernels = transform.dense().reshape(1, transform.n, parts, -1)
    w = call.constant("kernels", kernels)
    made = Conv(name=call.derived("product"), x=image, w=w, strides=(1, step))
    shape = (batch, made.type.shape[2], transform.bins, 2)
    return Reshape(name=call.result, x=made, shape=shape)


def frames(call: Call, x: Node, n: int, step: int) -> Node:
    """x [B, L, P] as [B, F, n, P]."""
    call.reserve(((x.type.shape[1] - n) // step + 1, n), 8)
    starts = np.arange(0, x.type.shape[1] - n + 1, step)
    indices = Constant(name=call.derived("indices"), value=starts[:, None] + np.arange(n))
    return Gather(name=call.derived("frames"), x=x, indices=indices, axis=1)
