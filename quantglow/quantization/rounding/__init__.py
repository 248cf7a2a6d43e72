"""Rounding of weights and biases by the errors they make on samples (accuracy recovery)."""

from quantglow.quantization.rounding.layerwise import TECHNIQUES, RoundingCache, round_layers
from quantglow.quantization.rounding.sampling import MAX_NBYTES, Reservoir, capacity, sample_nbytes

__all__ = [
    "MAX_NBYTES",
    "TECHNIQUES",
    "Reservoir",
    "RoundingCache",
    "capacity",
    "round_layers",
    "sample_nbytes",
]
