"""correct-bias: take the mean error of each channel out of its bias.

    b = mean(y) - s mean(x) q

over the calibration data, where y is the float model's result before its clip and x the rounded
input that the layers before really give (bias correction, Nagel et al., 2019, arXiv:1906.04721,
section 4.2, with measured means).  Where both models clip, no error is left to correct; see
``layerwise``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantglow.quantization.recovery.layer import Layer


def correct_bias(layer: Layer) -> Layer:
    """The layer without mean error, in the channels whose accumulator has room for the bias."""
    bias = layer.shifted_bias(layer.in_units(layer.integers, layer.steps))
    fits = layer.excess(layer.integers, layer.steps, bias) <= 1
    return replace(layer, bias=np.where(fits, bias, layer.bias))
