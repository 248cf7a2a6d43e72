"""Discrete Fourier transforms as products with constant matrices.

A value's last axis holds its real part, or its real and imaginary parts.  Row (t, p) of a matrix
belongs to part p of sample t, column (k, q) to part q of bin k, so that both lie in memory as ONNX
has them.  Matrices are made in float64 and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.fourier import as_parts, turns
from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.frontend.operators.slicing import along
from quantglow.graph.node import Node
from quantglow.lazy import cached_property
from quantglow.ops import Gemm, MatMul, Mul, Pad, Reshape, Transpose

MOST_ELEMENTS, MOST_WHOLE = 2**20, 2**21
"""Maximum number of elements of the matrix of a stage, and of a whole transform; beyond, a fast
transform is faster than reading the matrix.  Whole ones serve lengths that have no factors, for
which other ways take long as well."""

ROUNDS = 4
"""Times fewer products from which two stages pay for the moves between them."""

LEAST_FACTOR = 5
"""Minimum factor of the length: stages of fewer samples save little."""


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
        """[a, b, 2, bins / a, parts]: for each bin of the first stage, its b results turned."""
        first, t = np.arange(a)[:, None, None], np.arange(self.n // a)[:, None]
        bins = first + a * np.arange(-(-self.bins // a))
        return self.matrix(t * bins, 2, self.parts[1]) * self.scale


def transformed(call: Call, x: Node, transform: Transform, name: str) -> Node:
    """x [..., T, P] as [..., K, Q].  Raises ``Unsupported`` where matrices would be too large."""
    transform.check()
    *batch, _, _ = x.type.shape
    if transform.split is not None:
        return in_two_stages(call, x, transform, transform.split, name)
    made = product(call, x, transform.dense())
    return Reshape(name=name, x=made, shape=(*batch, transform.bins, transform.parts[1]))


def product(call: Call, x: Node, matrix: Array) -> Node:
    """x [..., T, P] times [T, P, K, Q], as rows of K * Q."""
    rows, columns = (math.prod(axes) for axes in (matrix.shape[:2], matrix.shape[2:]))
    flat = Reshape(name=call.derived("rows"), x=x, shape=(x.type.size // rows, rows))
    w = call.constant("matrix", matrix.reshape(rows, columns))
    return Gemm(name=call.derived("product"), x=flat, w=w)


def in_two_stages(call: Call, x: Node, transform: Transform, a: int, name: str) -> Node:
    """Sample ``b t1 + t2`` and bin ``k1 + a k2`` of ``n = a b`` (Cooley and Tukey, 1965)."""
    b = transform.n // a
    *batch, _, parts = x.type.shape
    m = math.prod(batch)

    def moved(x: Node, *perm: int) -> Node:
        return Transpose(name=call.derived("moved"), x=x, perm=perm)

    def shaped(x: Node, *shape: int) -> Node:
        return Reshape(name=call.derived("as"), x=x, shape=shape)

    x = shaped(weighted(call, x, transform), m, a, b, parts)
    stage = product(call, moved(x, 0, 2, 1, 3), transform.first_stage(a))
    by_bin = shaped(moved(shaped(stage, m, b, a, 2), 2, 0, 1, 3), a, m, b * 2)
    matrix = transform.second_stage(a)
    groups, parts = matrix.shape[-2:]
    y = call.constant("turned", matrix.reshape(a, b * 2, groups * parts))
    made = shaped(MatMul(name=call.derived("product"), x=by_bin, y=y), a, m, groups, parts)
    bins = shaped(moved(made, 1, 2, 0, 3), *batch, groups * a, parts)
    return along(name, bins, len(batch), range(transform.bins))


def weighted(call: Call, x: Node, transform: Transform) -> Node:
    """x [..., T, P] times the weights, and zeros up to n samples."""
    if (transform.weights != 1).any():
        weights = call.constant("weights", transform.weights[:, None])
        x = Mul(name=call.derived("weighted"), x=x, y=weights)
    none = (0,) * x.type.rank
    after = (*none[2:], transform.n - transform.samples, 0)
    return x if after == none else Pad(name=call.derived("padded"), x=x, before=none, after=after)
