"""Scales and zero points of groups of weights, searched for the least error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantglow.foreign_types import Array
from quantglow.processes.workers import each

SHRINKING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
"""Shares of a group's range that the codes may span: what is beyond is clipped."""
ROWS_AT_ONCE = 64
"""Output channels whose groups are searched together, for the cache."""


@dataclass(frozen=True)
class Grid:
    """``real = (code - zero_point) * scale`` for each group.

    scales float32 [N, G] and zero points float32 [N, G], whole numbers; codes in
    ``[0, 2 ** bits)``.
    """

    scales: Array
    zero_points: Array
    bits: int

    def codes(self, groups: Array) -> Array:
        """The nearest codes of weights [N, G, group], float32."""
        steps = groups / self.scales[..., None]
        np.rint(steps, out=steps)
        steps += self.zero_points[..., None]
        return np.clip(steps, 0, 2**self.bits - 1, out=steps)

    def reals(self, codes: Array) -> Array:
        """The weights that codes [N, G, group] stand for."""
        return (codes - self.zero_points[..., None]) * self.scales[..., None]


def searched_grid(
    groups: Array, bits: int, symmetric: bool, importance: Array | None = None
) -> Grid:
    """The grid for weights [N, G, group] whose rounded weights have the least squared error.

    ``importance`` [G, group]: weight of each input's error.  Without it an error counts in
    proportion to the square of its weight, as in llama.cpp's quantizers: the plain squared error
    clips the few large weights of a group, which costs trained networks more than it gains
    (``benchmarks/notes/2026-11-decoders.md``).  ``symmetric``: zero points are
    ``2 ** (bits - 1)``, and a scale may be negative, so that the code without an opposite is that
    of the largest weight.
    """
    scales = np.empty(groups.shape[:2], np.float32)
    points = np.empty_like(scales)

    def search(start: int) -> None:
        rows = slice(start, start + ROWS_AT_ONCE)
        part = groups[rows]
        shares = np.square(part) if importance is None else importance[None]
        found = _best(part, bits, symmetric, np.broadcast_to(shares, part.shape))
        scales[rows], points[rows] = found.scales, found.zero_points

    each(search, range(0, len(groups), ROWS_AT_ONCE))
    return Grid(scales, points, bits)


def _best(groups: Array, bits: int, symmetric: bool, importance: Array) -> Grid:
    """The best of the candidates and of their refinements, for each group; ``importance`` has the
    weight of each error, [N, G, group].
    """
    best, least = None, np.empty(0)
    for grid in _candidates(groups, bits, symmetric):
        for tried in (grid, _refined(grid, groups, importance)):
            errors = _errors(tried, groups, importance)
            if best is None:
                best, least = tried, errors
                continue
            better = errors < least
            least = np.where(better, errors, least)
            scales = np.where(better, tried.scales, best.scales)
            best = Grid(scales, np.where(better, tried.zero_points, best.zero_points), bits)
    assert best is not None
    return best


def _candidates(groups: Array, bits: int, symmetric: bool) -> Iterator[Grid]:
    """Grids that span shares of the ranges; the first one clips nothing."""
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    low = np.minimum(groups.min(axis=2), 0)
    high = np.maximum(groups.max(axis=2), 0)
    for share in SHRINKING:
        if symmetric:
            extreme = np.where(-low > high, low, high)
            points = np.full(low.shape, middle, np.float32)
            yield Grid(_usable(extreme * np.float32(-share / middle)), points, bits)
        else:
            scales = _usable((high - low) * np.float32(share / top))
            points = np.clip(np.rint(-low * np.float32(share) / scales), 0, top)
            yield Grid(scales, points.astype(np.float32), bits)


def _usable(scales: Array) -> Array:
    """Scales by which one can divide: 1 for groups of zeros, or of next to nothing."""
    found: Array = np.where(np.abs(scales) > np.finfo(np.float32).tiny, scales, 1)
    return found.astype(np.float32)


def _refined(grid: Grid, groups: Array, importance: Array) -> Grid:
    """The scales of least squares for the codes that a grid gives."""
    centred = grid.codes(groups) - grid.zero_points[..., None]
    products = np.einsum("ngk,ngk,ngk->ng", centred, groups, importance)
    squares = np.einsum("ngk,ngk,ngk->ng", centred, centred, importance)
    scales = np.divide(products, squares, out=grid.scales.copy(), where=squares > 0)
    return Grid(_usable(scales), grid.zero_points, grid.bits)


def _errors(grid: Grid, groups: Array, importance: Array) -> Array:
    """Squared errors of groups [N, G]."""
    errors = grid.reals(grid.codes(groups))
    errors -= groups
    return np.asarray(np.einsum("ngk,ngk,ngk->ng", errors, errors, importance))
