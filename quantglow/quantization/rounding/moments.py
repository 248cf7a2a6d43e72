"""Moments of a layer's input over calibration data, and their Cholesky factors.

The techniques of this folder need no other data, and memory does not grow with the number of
samples.

Factors are made and used in blocks of columns, so that nearly all work is matrix products.  Against
LAPACK through SciPy a factor takes as long and a solution half as long (512 inputs: 2.1 and 2.1 ms;
with 512 outputs 3.6 and 7.1 ms), other threads go on meanwhile, and SciPy need not be imported.
If rounding in float32 makes a matrix lose its positive definiteness, float64 is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.processes.workers import later

BLOCK = 64
"""Number of columns of a factor that are computed together."""

SMALL = 16
"""Maximum number of rows of a triangle that LAPACK inverts."""

EXACT = 2.0**24
"""Largest number up to which float32 holds every integer."""

MIN_ROWS = 16
"""Minimum number of rows of a slice: shorter ones are multiplied faster in float64."""

SPARE = 1.25
"""Factor by which rows are cut into more parts than needed on average, so that few parts need a
second cut."""

DAMPING = 0.01
"""Share of the mean variance that is added to every variance, so that inputs that never vary do no
harm."""

MIN_VARIANCE = 1e-3
"""Minimum variance of an input, in steps squared.  An input that varies less counts as constant."""


@dataclass
class Moments:
    """Sums over rows of x [G, rows, K] and missing [G, rows, O/G], in float64.

    missing    ``y - (x @ w + b)``: the wanted result less that of the real weights

    If x are integers, ``x_sum`` and ``gram`` are exact, so that the order of the data does not
    change them.  ``second``: whether ``gram`` (of x x') and ``cross`` (of x missing') are kept.
    """

    second: bool
    count: int
    x_sum: Array
    missing_sum: Array
    gram: Array
    cross: Array

    @staticmethod
    def zeros(shape: tuple[int, int, int], second: bool = True) -> Moments:
        """No data yet; ``shape``: (G, K, O/G)."""
        group, k, outputs = shape
        side = k if second else 0
        gram, cross = np.zeros((group, side, side)), np.zeros((group, side, outputs))
        return Moments(second, 0, np.zeros((group, k)), np.zeros((group, outputs)), gram, cross)

    def add(self, x: Array, missing: Array) -> None:
        """Count float32 rows."""
        self.count += x.shape[1]
        self.missing_sum += missing.sum(axis=1, dtype=np.float64)
        if not self.second:
            self.x_sum += x.sum(axis=1, dtype=np.float64)
            return
        slices = exact_slices(x)
        if not slices:
            x, missing, slices = x.astype(np.float64), missing.astype(np.float64), [slice(None)]
        for rows in slices:
            part = x[:, rows]
            transposed = part.transpose(0, 2, 1)
            # No sum of integers is larger than that of their squares.
            self.x_sum += part.sum(axis=1)
            self.gram += transposed @ part
            self.cross += transposed @ missing[:, rows]

    def add_products(self, count: int, products: Array) -> None:
        """Count rows whose sums of products are known: [G, K + 2, K + 2] of any two of x, missing
        [G, rows, 1] and 1.
        """
        self.count += count
        self.x_sum += products[:, :-2, -1]
        self.missing_sum += products[:, -2, -1:]
        self.gram += products[:, :-2, :-2]
        self.cross += products[:, :-2, -2, None]

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.second,
            self.count + other.count,
            self.x_sum + other.x_sum,
            self.missing_sum + other.missing_sum,
            self.gram + other.gram,
            self.cross + other.cross,
        )

    @property
    def x_mean(self) -> Array:
        return np.asarray(self.x_sum / max(self.count, 1))

    @property
    def missing_mean(self) -> Array:
        return np.asarray(self.missing_sum / max(self.count, 1))

    def covariance(self) -> Array:
        """``mean(x x') - mean(x) mean(x)'``, [G, K, K]: the bias takes care of the means."""
        mean = self.x_mean
        covariance = self.gram / max(self.count, 1)
        covariance -= mean[:, :, None] * mean[:, None, :]
        return np.asarray(covariance)

    def cross_covariance(self) -> Array:
        """``mean(x missing') - mean(x) mean(missing)'``, [G, K, O/G]."""
        covariance = self.cross / max(self.count, 1)
        covariance -= self.x_mean[:, :, None] * self.missing_mean[:, None, :]
        return np.asarray(covariance)


def exact_slices(x: Array) -> list[slice]:
    """Rows of integers [G, rows, K] whose products ``x' x`` float32 adds exactly, in any order;
    none where they would be short, as of int16 codes, whose squares alone it may not hold.

    No sum of products is larger than the largest sum of squares (Cauchy and Schwarz).
    """
    pending, slices = [slice(0, x.shape[1])], []
    while pending:
        rows = pending.pop()
        part = x[:, rows]
        squares = float(np.einsum("grk,grk->gk", part, part).max(initial=0.0))
        if squares <= EXACT:
            slices.append(rows)
            continue
        count, parts = rows.stop - rows.start, int(SPARE * squares / EXACT) + 1
        if count < parts * MIN_ROWS:
            return []
        ends = [rows.start + count * i // parts for i in range(parts + 1)]
        pending += map(slice, ends[:-1], ends[1:])
    return slices


@dataclass(frozen=True)
class Statistics:
    """Statistics of moments, each computed once.

    ``halves``: over every other sample, to try on one half what was fitted on the other; a single
    one where memory or samples are short.
    """

    halves: tuple[Moments, ...]

    @cached_property
    def moments(self) -> Moments:
        """Over all samples."""
        return self.halves[0] + self.halves[1] if len(self.halves) == 2 else self.halves[0]

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the input over all samples, float32 [G, K, K]."""
        return self.moments.covariance().astype(np.float32)

    @cached_property
    def cross_covariance(self) -> Array:
        """The covariance of the input and the missing over all samples, [G, K, O/G]."""
        return self.moments.cross_covariance()

    @cached_property
    def trust(self) -> float:
        """The share of the covariances that other data is expected to have.

        From n rows of K inputs the correlations are the less certain the more there are:
        ``(1 - r) C + r diag(C)`` with ``r = K / (K + n)`` (after Ledoit and Wolf, 2004).
        """
        k = int(self.moments.x_sum.shape[1])
        return 1.0 - k / (k + self.moments.count)

    @cached_property
    def spare(self) -> Array:
        """float32 [G, K, 1]: variances beside those ``trust`` leaves, with ``DAMPING`` (GPTQ)."""
        variances = np.diagonal(self.covariance, axis1=1, axis2=2)
        damping = DAMPING * np.maximum(variances.mean(axis=1, keepdims=True), MIN_VARIANCE)
        spare = (1 - self.trust) * variances + damping
        return np.asarray(spare[:, :, None], np.float32)

    @cached_property
    def metric(self) -> Array:
        """The covariance to expect of other data, float32 [G, K, K]."""
        metric = np.float32(self.trust) * self.covariance
        diagonal = np.arange(metric.shape[1])
        metric[:, diagonal, diagonal] += self.spare[:, :, 0]
        return metric

    @cached_property
    def feedback(self) -> Callable[[], Feedback]:
        """A function that gives the feedback of rounding.  Another thread computes it from the
        first access to this property, which may come before it is needed.
        """
        return later(feedback, self.metric)


def lower_factors(matrices: Array) -> Array:
    """L [G, K, K] with ``L L' = matrices``, lower triangular."""
    if len(matrices) == 1:
        return _factor(matrices[0])[0][None]
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError:
        return np.linalg.cholesky(matrices.astype(np.float64)).astype(matrices.dtype)


def solutions(matrices: Array, right: Array) -> Array:
    """X [G, K, O] with ``matrices X = right``."""
    if len(matrices) > 1:
        # Groups are small: the overhead of a call for each exceeds its computation.
        return np.asarray(np.linalg.solve(matrices, right))
    return _substitute(*_factor(matrices[0]), right[0])[None]


@dataclass(frozen=True)
class Feedback:
    """F [G, K, K], unit upper triangular, with ``metric = F D F'`` for inputs in ``order``
    [G, K, 1].
    """

    order: Array
    factors: Array


def feedback(metric: Array) -> Feedback:
    """The feedback of a metric; inputs with the largest variances come first."""
    variances = np.diagonal(metric, axis1=1, axis2=2)
    # As with act-order of GPTQ's code: what costs most is rounded while most inputs are left to
    # make up for it.
    order = np.argsort(-variances, axis=1, kind="stable")[:, :, None]
    return Feedback(order, unit_factors(metric, order))


def unit_factors(metric: Array, order: Array) -> Array:
    """F with ``metric = F D F'`` in the given order [G, K, 1], F unit upper triangular."""
    # The lower factor of the reversed matrix, reversed, is upper: metric = U U', F = U / diag(U).
    factor = lower_factors(_reorder(metric, order[:, ::-1]))[:, ::-1, ::-1]
    return np.asarray(factor / np.diagonal(factor, axis1=1, axis2=2)[:, None, :])


def _reorder(metric: Array, order: Array) -> Array:
    if len(metric) == 1:
        rows = metric[0].take(order[0, :, 0], axis=0)
        return np.asarray(rows.take(order[0, :, 0], axis=1))[None]
    rows = np.take_along_axis(metric, order, axis=1)
    return np.take_along_axis(rows, order.transpose(0, 2, 1), axis=2)


def _factor(matrix: Array) -> tuple[Array, list[Array]]:
    """L with ``L L' = matrix``, and the inverses of the blocks of its diagonal."""
    try:
        return _lower_by_blocks(matrix)
    except np.linalg.LinAlgError:
        lower, inverses = _lower_by_blocks(matrix.astype(np.float64))
        return lower.astype(matrix.dtype), [inverse.astype(matrix.dtype) for inverse in inverses]


def _lower_by_blocks(matrix: Array) -> tuple[Array, list[Array]]:
    """``_factor``: the left-looking form, one block of columns after the other (Golub and Van Loan,
    Matrix Computations, chapter 4)."""
    lower, inverses = np.zeros_like(matrix), []
    for block in _blocks(len(matrix)):
        rows, done = slice(block.start, None), slice(block.start)
        columns = matrix[rows, block] - lower[rows, done] @ lower[block, done].T
        size = block.stop - block.start
        lower[block, block] = np.linalg.cholesky(columns[:size])
        inverses.append(inverse_of_lower(lower[block, block]))
        lower[block.stop :, block] = columns[size:] @ inverses[-1].T
    return lower, inverses


def _substitute(lower: Array, inverses: list[Array], right: Array) -> Array:
    """X with ``L L' X = right``: forward and back substitution."""
    solution = np.empty_like(right)
    blocks = list(_blocks(len(lower)))
    for block, inverse in zip(blocks, inverses, strict=True):
        solved = slice(block.start)
        solution[block] = inverse @ (right[block] - lower[block, solved] @ solution[solved])
    for block, inverse in zip(reversed(blocks), reversed(inverses), strict=True):
        solved = slice(block.stop, None)
        solution[block] = inverse.T @ (solution[block] - lower[solved, block].T @ solution[solved])
    return solution


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def inverse_of_lower(lower: Array) -> Array:
    """The inverse of a lower triangle [K, K], by halves."""
    if len(lower) <= SMALL:
        return np.asarray(np.linalg.inv(lower))
    # The inverse of [A 0; B C] is [A^-1 0; -C^-1 B A^-1 C^-1].
    inverse, half = np.zeros_like(lower), len(lower) // 2
    inverse[:half, :half] = inverse_of_lower(lower[:half, :half])
    inverse[half:, half:] = inverse_of_lower(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ lower[half:, :half] @ inverse[:half, :half]
    return inverse
