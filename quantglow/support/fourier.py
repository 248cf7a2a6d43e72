"""Matrices of discrete Fourier transforms, by their turns: ``exp(2 pi i j / n)``.

Row (t, p) belongs to part p of sample t, column (k, q) to part q of bin k, as ONNX lays them out; a
real signal has one part.  Elements are made in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.support.arrays import Array

LEAST_SAMPLES = 8
"""Shorter transforms are not looked for."""

GLANCE = 3
"""Samples that tell most matrices from those of a transform."""


@dataclass(frozen=True)
class FourierMatrix:
    """``groups`` matrices of ``exp(direction 2 pi i t k / n)``, t < samples: group g has the bins
    ``k = g, g + groups, ...``, so many of them.
    """

    n: int
    samples: int
    bins: int
    parts: tuple[int, int]
    direction: int = -1
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = (self.n, self.samples, self.bins, self.groups)
        if min(sizes) < 1 or {*self.parts} - {1, 2} or self.direction not in (-1, 1):
            raise ValueError(f"there is no {self}")

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.groups * self.samples * self.bins * self.parts[0] * self.parts[1]

    def elements(self, table: Array, samples: Array | slice = slice(None)) -> Array:
        """float64 [groups, samples, parts, bins, parts] from complex turns [n]."""
        t = np.arange(self.samples)[samples, None]
        bins = np.arange(self.groups)[:, None, None] + self.groups * np.arange(self.bins)
        factors = as_parts(table[self.direction * t * bins % self.n])
        return factors[..., : self.parts[0], :, : self.parts[1]]


@dataclass(frozen=True)
class Windowed:
    """A matrix times a factor for each sample: float64 [samples]."""

    matrix: FourierMatrix
    window: Array

    def elements(self, table: Array, samples: Array | slice = slice(None)) -> Array:
        """float32 [groups, samples, parts, bins, parts] from complex turns [n]."""
        factors = self.window[samples, None, None, None]
        return np.asarray(self.matrix.elements(table, samples) * factors, np.float32)

    def is_equal(self, array: Array, table: Array) -> bool:
        """Whether an array has these elements, bit for bit."""
        m = self.matrix
        blocks = array.reshape(m.groups, m.samples, m.parts[0], m.bins, m.parts[1])
        return all(
            self.elements(table, some).tobytes() == blocks[:, some].tobytes()
            for some in (slice(1, 1 + GLANCE), slice(None))
        )


def turns(n: int) -> Array:
    """``exp(2 pi i j / n)`` for j < n; exact where a part is 0 or 1."""
    quarters, remainders = np.divmod(4 * np.arange(n) + n // 2, n)
    units = np.array([1, 1j, -1, -1j])[quarters % 4]
    return np.asarray(np.exp(0.5j * np.pi * (remainders - n // 2) / n) * units)


def as_parts(factors: Array) -> Array:
    """Products with complex factors [..., T, K] as [..., T, 2, K, 2]."""
    columns = np.stack([factors, 1j * factors], axis=-2)
    return np.stack([columns.real, columns.imag], axis=-1)


def recognize(array: Array) -> tuple[Windowed, Array] | None:
    """The windowed matrix that an array of float32 is, and the turns it has been made from."""
    if array.dtype != np.float32 or array.ndim < 2 or array.shape[-1] < LEAST_SAMPLES:
        return None
    tables: dict[int, Array] = {}
    for matrix in _candidates(array.shape):
        for window in _windows(array, matrix):
            table = tables.setdefault(matrix.n, turns(matrix.n))
            if Windowed(matrix, window).is_equal(array, table):
                return Windowed(matrix, window), table
    return None


def _candidates(shape: tuple[int, ...]) -> Iterator[FourierMatrix]:
    """Matrices that an array of a shape may be: whole ones, and the second stage of a fast one."""
    columns, rows = shape[-1], int(np.prod(shape[:-1]))
    for row_parts, column_parts in ((1, 2), (2, 2), (2, 1)):
        if columns % column_parts or rows % row_parts:
            continue
        samples, bins = rows // row_parts, columns // column_parts
        for n in sorted({samples, bins, 2 * bins - 2, 2 * bins - 1}):
            if n >= max(samples, LEAST_SAMPLES) and n >= bins:
                for direction in (-1, 1):
                    yield FourierMatrix(n, samples, bins, (row_parts, column_parts), direction)
        if len(shape) == 3 and shape[0] > 1 and row_parts == 2 and shape[1] % 2 == 0:
            groups, samples = shape[0], shape[1] // 2
            for direction in (-1, 1):
                n = groups * samples
                yield FourierMatrix(n, samples, bins, (row_parts, column_parts), direction, groups)


def _windows(array: Array, matrix: FourierMatrix) -> Iterator[Array]:
    """Windows [samples] that fit the first column: as it is, and in exact parts of n."""
    rows = array.reshape(matrix.groups, matrix.samples, matrix.parts[0], -1)
    first = rows[0, :, 0, 0].astype(np.float64)
    yield first
    whole = np.rint(first * matrix.n)
    if np.abs(first * matrix.n - whole).max() < 1e-3:
        yield 1 / matrix.n * whole
