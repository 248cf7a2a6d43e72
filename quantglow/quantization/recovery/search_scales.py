"""search-scales: a finer step for most weights of a channel, at the price of clipping the largest.

For each ratio r of a grid the target is rounded, as by ``round-weights``, with the step
``r max |w| / 127``.  The step with the smallest error stays.  This is the range search of
quantizers that minimise the square error (Banner et al., 2019, arXiv:1810.05723), with the error
weighted by the data, and with clipping errors spread over the other weights.
"""

from __future__ import annotations

import numpy as np

from quantglow.quantization.recovery.layer import Layer
from quantglow.quantization.recovery.round_weights import rounded

RATIOS = (0.9, 0.8, 0.7)
"""Candidates for r."""


def search_scales(layer: Layer) -> Layer:
    """The layer with the step of each channel that suits its data."""
    if not layer.per_channel:
        return layer
    for ratio in RATIOS:
        scales = (layer.reach * (ratio / layer.x.scale)).astype(np.float32)
        steps = scales.astype(np.float64) * layer.x.scale
        integers = rounded(layer.rounding(steps), layer.statistics.feedback())
        layer = layer.taking(integers, steps)
    return layer
