"""Accuracy recovery: weights and biases chosen by the errors they make on samples."""

from quantglow.quantization.recovery.cache import Cache
from quantglow.quantization.recovery.layerwise import TECHNIQUES, recover
from quantglow.quantization.recovery.sampling import (
    MAX_NBYTES,
    Reservoir,
    capacity,
    sample_nbytes,
)

__all__ = [
    "MAX_NBYTES",
    "TECHNIQUES",
    "Cache",
    "Reservoir",
    "capacity",
    "recover",
    "sample_nbytes",
]
