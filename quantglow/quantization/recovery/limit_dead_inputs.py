"""limit-dead-inputs: no weight of an input that is 0 in all samples decides the step of a channel.

A BatchNormalization behind a channel that never fires divides by a variance near 0.  Folded into
the layer that reads the channel, it gives weights thousands of times larger than the others, which
would all round to 0.  On the samples a smaller weight of a dead input makes the same results.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.quantization.recovery.layer import Layer

MAX_RATIO = 16.0
"""Maximum ratio of the largest weight of a channel to its largest one of a live input.  Above it,
live ones would have fewer than five bits, with sign."""


def limit_dead_inputs(layer: Layer) -> Layer:
    """The layer with weights of dead inputs no larger than those of live ones, in the channels that
    they dominate.
    """
    if not layer.moments.second or not layer.per_channel:
        return layer
    dead = np.diagonal(layer.moments.gram, axis1=1, axis2=2)[:, :, None] == 0
    sizes = np.abs(layer.weights)
    live = np.where(dead, np.float32(0), sizes).max(axis=1, keepdims=True)
    dominated = (live > 0) & (sizes.max(axis=1, keepdims=True) > MAX_RATIO * live)
    if not dominated.any():
        return layer
    limits = np.where(dead & dominated, live, np.float32(np.inf))
    weights = np.clip(layer.weights, -limits, limits)
    return replace(layer, weights=weights).aiming_at(weights)
