"""Rounding of weights and biases by the errors they make on samples (accuracy recovery)."""

from quantglow.quantization.rounding.layerwise import TECHNIQUES, Cache, recover
from quantglow.quantization.rounding.sampling import MAX_NBYTES, Reservoir, capacity, sample_nbytes

__all__ = [
    "MAX_NBYTES",
    "TECHNIQUES",
    "Cache",
    "Reservoir",
    "capacity",
    "recover",
    "sample_nbytes",
]
