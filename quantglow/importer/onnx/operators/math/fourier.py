"""Importers of DFT and STFT, as products with constant matrices.

A value's last axis holds its real part, or its real and imaginary parts.  Row (t, p) of a matrix
belongs to part p of sample t, column (k, q) to part q of bin k, so that both lie in memory as ONNX
has them.  Matrices are made in float64 and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.tensor.shape import normal
from quantglow.importer.onnx.operators.tensor.slicing import along
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Conv, Gather, Gemm, MatMul, Mul, Pad, Reshape, Transpose
from quantglow.ir.symbolic.size import Dim, decide, decide_min, prod
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.fourier import as_parts, turns

MOST_ELEMENTS, MOST_WHOLE = 2**20, 2**21
"""Maximum number of elements of the matrix of a stage, and of a whole transform; beyond, a fast
transform is faster than reading the matrix.  Whole ones serve lengths that have no factors, for
which other ways take long as well."""

ROUNDS = 4
"""Times fewer products from which two stages pay for the moves between them."""

LEAST_FACTOR = 5
"""Minimum factor of the length: stages of fewer samples save little."""

MOST_IN_KERNELS = 2**19
"""Elements of a matrix up to which a Conv, which reads frames where they are, is faster than two
stages on frames laid side by side: 723 real samples."""


@dataclass(frozen=True)
class Transform:
    """``X[k] = scale * sum over t of weights[t] x[t] exp(direction 2 pi i t k / n)``, k < bins.

    ``parts`` are those of x and X, of which a real one has one only; x has as many samples as
    there are weights, at most n.
    """

    n: int
    bins: int
    weights: Array
    parts: tuple[int, int]
    direction: int = -1
    scale: float = 1.0

    @property
    def samples(self) -> int:
        return len(self.weights)

    @property
    def dense_size(self) -> int:
        """Elements of the whole matrix: its products for each transform."""
        return self.samples * self.bins * math.prod(self.parts)

    def stage_sizes(self, a: int) -> tuple[int, int]:
        """Products of either stage that ``n = a * b`` is split into."""
        x_parts, y_parts = self.parts
        return self.n * x_parts * 2 * a, 2 * self.n * -(-self.bins // a) * y_parts

    def are_small(self, a: int) -> bool:
        """Whether the matrices of both stages are."""
        return max(self.parts[0] * 2 * a * a, self.stage_sizes(a)[1]) <= MOST_ELEMENTS

    @cached_property
    def split(self) -> int | None:
        """The factor of n that makes the fewest products in two stages, None if one is as good."""
        most = min(self.n // LEAST_FACTOR, math.isqrt(MOST_ELEMENTS))
        factors = (a for a in range(LEAST_FACTOR, most + 1) if self.n % a == 0)
        costs = [(sum(self.stage_sizes(a)), a) for a in factors if self.are_small(a)]
        cost, best = min(costs, default=(self.dense_size, 0))
        return best if cost * ROUNDS <= self.dense_size else None

    def check(self) -> None:
        """Raise ``Unsupported`` if its matrices would be too large."""
        if self.split is None and self.dense_size > MOST_WHOLE:
            size = 4 * self.dense_size / 2**20
            raise Unsupported(f"the matrix of {self.n} samples takes {size:.0f} MiB")

    def matrix(self, angles: Array, x_parts: int, y_parts: int) -> Array:
        """[..., T, x_parts, K, y_parts] of ``angles`` [..., T, K], of which n make a turn."""
        factors = as_parts(turns(self.n)[self.direction * angles % self.n])
        return factors[..., :x_parts, :, :y_parts]

    def dense(self) -> Array:
        """[samples, parts, bins, parts]"""
        angles = np.outer(np.arange(self.samples), np.arange(self.bins))
        scales = self.scale * self.weights.astype(np.float64)
        return self.matrix(angles, *self.parts) * scales[:, None, None, None]

    def first_stage(self, a: int) -> Array:
        """[a, parts, a, 2]: every b-th sample, to its bins."""
        angles = np.outer(np.arange(a), np.arange(a)) * (self.n // a)
        return self.matrix(angles, self.parts[0], 2)

    def second_stage(self, a: int) -> Array:
        """[a, b, 2, bins / a, parts]: for each bin of the first stage, its b results times their
        twiddle factors."""
        first, t = np.arange(a)[:, None, None], np.arange(self.n // a)[:, None]
        bins = first + a * np.arange(-(-self.bins // a))
        return self.matrix(t * bins, 2, self.parts[1]) * self.scale


def _apply_transform(call: Call, x: Node, transform: Transform, name: str) -> Node:
    """x [..., T, P] as [..., K, Q].  Raises ``Unsupported`` where matrices would be too large."""
    transform.check()
    *batch, _, _ = x.type.shape
    if transform.split is not None:
        return _in_two_stages(call, x, transform, transform.split, name)
    bins = product(call, x, transform.dense())
    return Reshape(name=name, x=bins, shape=(*batch, transform.bins, transform.parts[1]))


def product(call: Call, x: Node, matrix: Array) -> Node:
    """x [..., T, P] times [T, P, K, Q], as rows of K * Q."""
    rows, columns = (math.prod(axes) for axes in (matrix.shape[:2], matrix.shape[2:]))
    flat = Reshape(name=call.derive("rows"), x=x, shape=(x.type.size // rows, rows))
    w = call.constant("matrix", matrix.reshape(rows, columns))
    return Gemm(name=call.derive("product"), x=flat, w=w)


def _in_two_stages(call: Call, x: Node, transform: Transform, a: int, name: str) -> Node:
    """Sample ``b t1 + t2`` and bin ``k1 + a k2`` of ``n = a b`` (Cooley and Tukey, 1965)."""
    b = transform.n // a
    *batch, _, parts = x.type.shape
    m = prod(batch)

    def transpose(x: Node, *perm: int) -> Node:
        return Transpose(name=call.derive("moved"), x=x, perm=perm)

    def reshape(x: Node, *shape: Dim) -> Node:
        return Reshape(name=call.derive("as"), x=x, shape=shape)

    x = reshape(_weigh(call, x, transform), m, a, b, parts)
    stage = product(call, transpose(x, 0, 2, 1, 3), transform.first_stage(a))
    by_bin = reshape(transpose(reshape(stage, m, b, a, 2), 2, 0, 1, 3), a, m, b * 2)
    matrix = transform.second_stage(a)
    groups, parts = matrix.shape[-2:]
    y = call.constant("turned", matrix.reshape(a, b * 2, groups * parts))
    second = reshape(MatMul(name=call.derive("product"), x=by_bin, y=y), a, m, groups, parts)
    bins = reshape(transpose(second, 1, 2, 0, 3), *batch, groups * a, parts)
    return along(name, bins, len(batch), range(transform.bins))


def _weigh(call: Call, x: Node, transform: Transform) -> Node:
    """x [..., T, P] times the weights, and zeros up to n samples."""
    if (transform.weights != 1).any():
        weights = call.constant("weights", transform.weights[:, None])
        x = Mul(name=call.derive("weighted"), x=x, y=weights)
    none = (0,) * x.type.rank
    after = (*none[2:], transform.n - transform.samples, 0)
    return x if after == none else Pad(name=call.derive("padded"), x=x, before=none, after=after)


@importer("DFT")
def dft(call: Call) -> Node:
    """Samples beyond ``dft_length`` are cut off, missing ones are 0."""
    x, last = call.node(0), call.node(0).type.rank - 1
    default = call.integer("axis", 1) if call.opset < 20 else -2
    (axis,) = normal((_scalar(call, 2, "axis", default),), x.type.rank)
    if axis == last:
        raise ValueError(f"axis {axis} holds the parts of numbers")
    transform = _parse_transform(call, x.type.shape[axis], int(x.type.shape[-1]))
    if decide(transform.samples < x.type.shape[axis]):
        x = along(call.derive("used"), x, axis, range(transform.samples))
    if axis == last - 1:
        return _apply_transform(call, x, transform, call.result)
    perm = (*(i for i in range(last) if i != axis), axis, last)
    moved = Transpose(name=call.derive("moved"), x=x, perm=perm)
    bins = _apply_transform(call, moved, transform, call.derive("bins"))
    back = tuple(perm.index(i) for i in range(x.type.rank))
    return Transpose(name=call.result, x=bins, perm=back)


def _parse_transform(call: Call, size: Dim, parts: int) -> Transform:
    """Transform of ``size`` samples or bins, with the attributes of a DFT."""
    backwards, onesided = bool(call.integer("inverse", 0)), bool(call.integer("onesided", 0))
    if onesided and parts != 1 + backwards:
        raise Unsupported("onesided is the transform of real numbers, or the one back to them")
    n = _scalar(call, 1, "dft_length", 2 * (size - 1) if onesided and backwards else size)
    if n < 1 or parts not in (1, 2):
        raise Unsupported(f"of length {n}, and {parts} parts of a number")
    samples = int(decide_min(size, n))
    call.reserve((samples,), 8)
    if not backwards:
        bins = n // 2 + 1 if onesided else n
        return Transform(n, bins, np.ones(samples), (parts, 2))
    if not onesided:
        return Transform(n, n, np.ones(samples), (parts, 2), 1, 1 / n)
    halves = np.arange(int(decide_min(size, n // 2 + 1)))
    # Bins of the other half are the conjugates of these, but for the first and the middle one.
    weights = np.where(halves * 2 % n == 0, 1.0, 2.0)
    return Transform(n, n, weights, (2, 1), 1, 1 / n)


def _scalar(call: Call, position: int, role: str, default: Dim) -> int:
    return int(call.array(position, role).reshape(()) if call.has(position) else default)


@importer("STFT")
def stft(call: Call) -> Node:
    """Frames of the signal times the window, each transformed."""
    shape = call.shape(0)
    if len(shape) not in (2, 3):
        raise Unsupported(f"of a signal of shape {shape}")
    batch, length = shape[:2]
    parts = int(shape[2]) if len(shape) == 3 else 1
    step = _scalar(call, 1, "frame_step", 0)
    n = _scalar(call, 3, "frame_length", call.shape(2)[0] if call.has(2) else length)
    onesided = bool(call.integer("onesided", 1))
    is_frame = step >= 1 and n >= 1 and decide(n <= length)
    if parts not in (1, 2) or (onesided and parts == 2) or not is_frame:
        raise Unsupported(f"frames of {n} in steps of {step} of a signal of shape {shape}")
    window = call.array(2, "window") if call.has(2) and call.is_known(2) else np.ones(n)
    if window.shape != (n,):
        raise ValueError(f"the window has shape {window.shape}, a frame {n} samples")
    signal = Reshape(name=call.derive("signal"), x=call.node(0), shape=(batch, length, parts))
    transform = Transform(n, n // 2 + 1 if onesided else n, window, (parts, 2))
    is_computed = call.has(2) and not call.is_known(2)
    if not is_computed and (transform.split is None or transform.dense_size <= MOST_IN_KERNELS):
        return _in_one_product(call, signal, transform, step)
    x: Node = frames(call, signal, n, step)
    if is_computed:
        factors = Reshape(name=call.derive("window"), x=call.node(2), shape=(n, 1))
        x = Mul(name=call.derive("windowed"), x=x, y=factors)
    return _apply_transform(call, x, transform, call.result)


def _in_one_product(call: Call, x: Node, transform: Transform, step: int) -> Node:
    """A Conv: the columns of the matrix are its kernels."""
    transform.check()
    batch, length, channels = x.type.shape
    parts = int(channels)
    image = Reshape(name=call.derive("image"), x=x, shape=(batch, 1, length, parts))
    kernels = transform.dense().reshape(1, transform.n, parts, -1)
    w = call.constant("kernels", kernels)
    bins = Conv(name=call.derive("product"), x=image, w=w, strides=(1, step))
    shape = (batch, bins.type.shape[2], transform.bins, 2)
    return Reshape(name=call.result, x=bins, shape=shape)


def frames(call: Call, x: Node, n: int, step: int) -> Node:
    """x [B, L, P] as [B, F, n, P]."""
    length = int(x.type.shape[1])
    call.reserve(((length - n) // step + 1, n), 8)
    starts = np.arange(0, length - n + 1, step)
    indices = Constant(name=call.derive("indices"), value=starts[:, None] + np.arange(n))
    return Gather(name=call.derive("frames"), x=x, indices=indices, axis=1)
