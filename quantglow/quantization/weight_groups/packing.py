"""Weights of a product as packed codes."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.ops.weight_groups import PackedWeights, packed_codes
from quantglow.quantization.weight_groups.feedback import rounded_by_moments
from quantglow.quantization.weight_groups.scales import searched_grid


def packed_weights(
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
    importance = None if moments is None else importance_of(moments, depth, shape)
    grid = searched_grid(parts, bits, symmetric, importance)
    codes = grid.codes(parts) if moments is None else rounded_by_moments(parts, grid, moments)
    points = None if symmetric else grid.zero_points.astype(np.uint8)
    return PackedWeights(packed_codes(codes.astype(np.uint8), bits), grid.scales, points, bits)


def importance_of(moments: Array, depth: int, shape: tuple[int, int]) -> Array:
    """The mean square of each input; 0 for what fills the last group."""
    found = np.zeros(shape, np.float32)
    flat = found.reshape(-1)
    flat[:depth] = np.diagonal(moments)
    if not flat.any():
        flat[:depth] = 1
    return found
