"""GPTQ for weights in groups: each weight makes up for the rounding of those before it.

As ``recovery/round_weights.py``, on a grid that differs from group to group, and with the second
moments of the inputs: no bias takes care of their means.
"""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array
from quantglow.quantization.recovery.factors import Feedback, feedback
from quantglow.quantization.weight_groups.scales import Grid

DAMPING = 0.01
"""Share of the mean variance that is added to all: few samples do not span all inputs."""
BLOCK = 64
"""Inputs whose errors are passed on one by one, before a matrix product passes on all of them."""


def rounded_by_moments(groups: Array, grid: Grid, moments: Array) -> Array:
    """Codes of weights [N, G, group] for second moments [K, K] of their inputs; the nearest ones
    in channels where these have the smaller error, and where the inputs were zeros.
    """
    rows, depth = len(groups), len(moments)
    nearest = grid.codes(groups)
    if DAMPING * np.trace(moments) / depth < np.finfo(moments.dtype).tiny:
        return nearest
    found = nearest.copy()
    flat = found.reshape(rows, -1)
    metric = moments + np.eye(depth, dtype=moments.dtype) * (DAMPING * np.trace(moments) / depth)
    flat[:, :depth] = _in_order(groups, grid, feedback(metric[None]))
    errors = [_rounding_errors(groups - grid.reals(codes), metric) for codes in (found, nearest)]
    return np.where((errors[0] < errors[1])[:, None, None], found, nearest)


def _rounding_errors(differences: Array, metric: Array) -> Array:
    """``e' metric e`` of each channel."""
    flat = differences.reshape(len(differences), -1)[:, : len(metric)]
    return np.asarray(np.einsum("nk,nk->n", flat @ metric, flat))


def _in_order(groups: Array, grid: Grid, passed: Feedback) -> Array:
    """Codes [N, K], rounded in the order of the feedback."""
    rows, _, group = groups.shape
    order, turned = passed.order[0, :, 0], passed.factors[0].T
    weights = np.ascontiguousarray(groups.reshape(rows, -1)[:, order].T)
    scales = np.ascontiguousarray(grid.scales[:, order // group].T)
    points = np.ascontiguousarray(grid.zero_points[:, order // group].T)
    codes, errors = np.empty_like(weights), np.zeros_like(weights)
    for start in range(0, len(order), BLOCK):
        block = slice(start, min(start + BLOCK, len(order)))
        wanted = weights[block] + turned[block, :start] @ errors[:start]
        for i in range(start, block.stop):
            value = wanted[i - start] + turned[i, start:i] @ errors[start:i]
            code = np.rint(value / scales[i]) + points[i]
            codes[i] = np.clip(code, 0, 2**grid.bits - 1)
            errors[i] = weights[i] - (codes[i] - points[i]) * scales[i]
    found = np.empty((rows, len(order)), np.float32)
    found[:, order] = codes.T
    return found
