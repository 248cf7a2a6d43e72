"""Moments of a layer's input and wanted result over the calibration data.

All that the techniques of this folder need of the data, in memory that does not grow with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantglow.types import Array


@dataclass
class Moments:
    """Sums over rows of x [G, rows, K] and y [G, rows, O/G], in float64.

    Where x are integers, ``x_sum`` and ``gram`` are exact, so that the order of the data does
    not change them.  ``second``: whether ``gram`` (of x x') and ``cross`` (of x y') are kept.
    """

    second: bool
    count: int
    x_sum: Array
    y_sum: Array
    gram: Array
    cross: Array

    @staticmethod
    def zeros(shape: tuple[int, int, int], second: bool = True) -> Moments:
        """No data yet; ``shape``: (G, K, O/G)."""
        group, k, outputs = shape
        side = k if second else 0
        gram, cross = np.zeros((group, side, side)), np.zeros((group, side, outputs))
        return Moments(second, 0, np.zeros((group, k)), np.zeros((group, outputs)), gram, cross)

    def add(self, x: Array, y: Array) -> None:
        """Count float32 rows."""
        self.count += x.shape[1]
        self.x_sum += x.sum(axis=1, dtype=np.float64)
        self.y_sum += y.sum(axis=1, dtype=np.float64)
        if self.second:
            exact = x.astype(np.float64)
            for g, columns in enumerate(exact):
                self.gram[g] += columns.T @ columns
                self.cross[g] += columns.T @ y[g].astype(np.float64)

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.second,
            self.count + other.count,
            self.x_sum + other.x_sum,
            self.y_sum + other.y_sum,
            self.gram + other.gram,
            self.cross + other.cross,
        )

    @property
    def x_mean(self) -> Array:
        return np.asarray(self.x_sum / max(self.count, 1))

    @property
    def y_mean(self) -> Array:
        return np.asarray(self.y_sum / max(self.count, 1))

    def covariance(self) -> Array:
        """``mean(x x') - mean(x) mean(x)'``, [G, K, K]: the bias takes care of the means."""
        mean = self.x_mean
        means = mean[:, :, None] * mean[:, None, :]
        return np.asarray(self.gram / max(self.count, 1) - means)

    def cross_covariance(self) -> Array:
        """``mean(x y') - mean(x) mean(y)'``, [G, K, O/G]."""
        means = self.x_mean[:, :, None] * self.y_mean[:, None, :]
        return np.asarray(self.cross / max(self.count, 1) - means)
