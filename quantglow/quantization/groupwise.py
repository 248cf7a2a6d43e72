"""Groupwise weights of 4 and 8 bits: search of scales, GPTQ by moments, packed codes.

The grid of each group (scale and zero point) is searched for the least squared error.  GPTQ
(Frantar et al., 2023, arXiv:2210.17323) then rounds as ``rounding.techniques.round_weights`` does,
on a grid that differs from group to group and with the second moments of the inputs instead of the
covariance: no bias takes care of their means. The moments are summed over samples in bounded
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.groupwise import PackedWeights, pack_codes
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.rounding.moments import Feedback, feedback
from quantglow.support.arrays import Array
from quantglow.support.processes.workers import each

SHRINKING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
"""Shares of a group's range that the codes may span: what is beyond is clipped."""
ROWS_AT_ONCE = 64
"""Output channels whose groups are searched together, for the cache."""

MOST_NBYTES = 2**30
"""Size of the moments that are kept at the same time; for more the samples run again."""

DAMPING = 0.01
"""Share of the mean variance that is added to all: few samples do not span all inputs."""
BLOCK = 64
"""Inputs whose errors are passed on one by one, before a matrix product passes on all of them."""


def pack_weights(
    w: Array, bits: int, group: int, symmetric: bool, moments: Array | None = None
) -> PackedWeights:
    """Weights [K, N] in groups along K, with searched scales.

    ``moments``: second moments [K, K] of the inputs, for GPTQ; without them each weight is rounded
    to the nearest code.
    """
    depth, columns = w.shape
    groups = -(-depth // group)
    filled = np.zeros((columns, groups * group), np.float32)
    filled[:, :depth] = w.T
    parts = filled.reshape(columns, groups, group)
    shape = groups, group
    importance = None if moments is None else _input_importance(moments, depth, shape)
    grid = search_grid(parts, bits, symmetric, importance)
    codes = grid.codes(parts) if moments is None else round_by_moments(parts, grid, moments)
    points = None if symmetric else grid.zero_points.astype(np.uint8)
    return PackedWeights(pack_codes(codes.astype(np.uint8), bits), grid.scales, points, bits)


def _input_importance(moments: Array, depth: int, shape: tuple[int, int]) -> Array:
    """The mean square of each input; 0 for what fills the last group."""
    importance = np.zeros(shape, np.float32)
    flat = importance.reshape(-1)
    flat[:depth] = np.diagonal(moments)
    if not flat.any():
        flat[:depth] = 1
    return importance


@dataclass(frozen=True)
class WeightGrid:
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


def search_grid(
    groups: Array, bits: int, symmetric: bool, importance: Array | None = None
) -> WeightGrid:
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
        grid = _best_grid(part, bits, symmetric, np.broadcast_to(shares, part.shape))
        scales[rows], points[rows] = grid.scales, grid.zero_points

    each(search, range(0, len(groups), ROWS_AT_ONCE))
    return WeightGrid(scales, points, bits)


def _best_grid(groups: Array, bits: int, symmetric: bool, importance: Array) -> WeightGrid:
    """The best of the candidates and of their refinements, for each group; ``importance`` has the
    weight of each error, [N, G, group].
    """
    best, least = None, np.empty(0)
    for grid in _candidate_grids(groups, bits, symmetric):
        for tried in (grid, _refine(grid, groups, importance)):
            errors = _errors(tried, groups, importance)
            if best is None:
                best, least = tried, errors
                continue
            better = errors < least
            least = np.where(better, errors, least)
            scales = np.where(better, tried.scales, best.scales)
            best = WeightGrid(scales, np.where(better, tried.zero_points, best.zero_points), bits)
    assert best is not None
    return best


def _candidate_grids(groups: Array, bits: int, symmetric: bool) -> Iterator[WeightGrid]:
    """Grids that span shares of the ranges; the first one clips nothing."""
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    low = np.minimum(groups.min(axis=2), 0)
    high = np.maximum(groups.max(axis=2), 0)
    for share in SHRINKING:
        if symmetric:
            extreme = np.where(-low > high, low, high)
            points = np.full(low.shape, middle, np.float32)
            yield WeightGrid(_usable_scales(extreme * np.float32(-share / middle)), points, bits)
        else:
            scales = _usable_scales((high - low) * np.float32(share / top))
            points = np.clip(np.rint(-low * np.float32(share) / scales), 0, top)
            yield WeightGrid(scales, points.astype(np.float32), bits)


def _usable_scales(scales: Array) -> Array:
    """Scales by which one can divide: 1 for groups of zeros, or of next to nothing."""
    divisors: Array = np.where(np.abs(scales) > np.finfo(np.float32).tiny, scales, 1)
    return divisors.astype(np.float32)


def _refine(grid: WeightGrid, groups: Array, importance: Array) -> WeightGrid:
    """The scales of least squares for the codes that a grid gives."""
    # With the codes as they are, the error is a parabola in the scale.
    centered = grid.codes(groups) - grid.zero_points[..., None]
    products = np.einsum("ngk,ngk,ngk->ng", centered, groups, importance)
    squares = np.einsum("ngk,ngk,ngk->ng", centered, centered, importance)
    scales = np.divide(products, squares, out=grid.scales.copy(), where=squares > 0)
    return WeightGrid(_usable_scales(scales), grid.zero_points, grid.bits)


def _errors(grid: WeightGrid, groups: Array, importance: Array) -> Array:
    """Squared errors of groups [N, G]."""
    errors = grid.reals(grid.codes(groups))
    errors -= groups
    return np.asarray(np.einsum("ngk,ngk,ngk->ng", errors, errors, importance))


def input_moments(
    depths: Mapping[str, int], samples: Sequence[Feeds], graph_of: Callable[[Feeds], Graph]
) -> Iterator[dict[str, Array]]:
    """float32 [K, K] for values by name, as many at once as memory has room for.

    ``depths``: the values that are wanted, and the lengths K of their last axes; those that no
    graph has are left out.  ``graph_of``: the graph that runs a sample.
    """
    for names in batches(depths):
        moments = _Moments(frozenset(names))
        for feeds in samples:
            interpret(graph_of(feeds), feeds, [moments.add])
        yield moments.sums


@dataclass(frozen=True)
class _Moments:
    """Sums of the outer products of rows, for some values."""

    names: frozenset[str]
    sums: dict[str, Array] = field(default_factory=dict)

    def add(self, node: Node, value: Array) -> None:
        """A listener of the interpreter.  Values that are not finite say nothing."""
        if node.name not in self.names:
            return
        rows = value.reshape(-1, value.shape[-1]).astype(np.float32, copy=False)
        if node.name not in self.sums:
            self.sums[node.name] = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
        if np.isfinite(rows).all():
            self.sums[node.name] += rows.T @ rows


def batches(depths: Mapping[str, int]) -> Iterator[list[str]]:
    """Names in order, cut where their moments need too much memory."""
    names: list[str] = []
    nbytes = 0
    for name, depth in depths.items():
        size = 4 * depth * depth
        if names and nbytes + size > MOST_NBYTES:
            yield names
            names, nbytes = [], 0
        names.append(name)
        nbytes += size
    if names:
        yield names


def round_by_moments(groups: Array, grid: WeightGrid, moments: Array) -> Array:
    """Codes of weights [N, G, group] for second moments [K, K] of their inputs; the nearest ones
    in channels where these have the smaller error, and where the inputs were zeros.
    """
    rows, depth = len(groups), len(moments)
    nearest = grid.codes(groups)
    if DAMPING * np.trace(moments) / depth < np.finfo(moments.dtype).tiny:
        return nearest
    rounded = nearest.copy()
    flat = rounded.reshape(rows, -1)
    metric = moments + np.eye(depth, dtype=moments.dtype) * (DAMPING * np.trace(moments) / depth)
    flat[:, :depth] = _round_in_order(groups, grid, feedback(metric[None]))
    errors = [_rounding_errors(groups - grid.reals(codes), metric) for codes in (rounded, nearest)]
    return np.where((errors[0] < errors[1])[:, None, None], rounded, nearest)


def _rounding_errors(differences: Array, metric: Array) -> Array:
    """``e' metric e`` of each channel."""
    flat = differences.reshape(len(differences), -1)[:, : len(metric)]
    return np.asarray(np.einsum("nk,nk->n", flat @ metric, flat))


def _round_in_order(groups: Array, grid: WeightGrid, passed: Feedback) -> Array:
    """Codes [N, K], rounded in the order of the feedback."""
    rows, _, group = groups.shape
    order, transposed = passed.order[0, :, 0], passed.factors[0].T
    weights = np.ascontiguousarray(groups.reshape(rows, -1)[:, order].T)
    scales = np.ascontiguousarray(grid.scales[:, order // group].T)
    points = np.ascontiguousarray(grid.zero_points[:, order // group].T)
    codes, errors = np.empty_like(weights), np.zeros_like(weights)
    # Lazy batch updates (step 2 of GPTQ): errors go beyond their block in one product.
    for start in range(0, len(order), BLOCK):
        block = slice(start, min(start + BLOCK, len(order)))
        shifted = weights[block] + transposed[block, :start] @ errors[:start]
        for i in range(start, block.stop):
            value = shifted[i - start] + transposed[i, start:i] @ errors[start:i]
            code = np.rint(value / scales[i]) + points[i]
            codes[i] = np.clip(code, 0, 2**grid.bits - 1)
            errors[i] = weights[i] - (codes[i] - points[i]) * scales[i]
    result = np.empty((rows, len(order)), np.float32)
    result[:, order] = codes.T
    return result
