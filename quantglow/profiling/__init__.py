"""Profiling: run calibration data, keep a streaming histogram of every tensor.

>>> import numpy as np
>>> histogram = Histogram.of(np.float32([-1, 0, 2]))
>>> histogram == Histogram.of(np.float32([2, -1])).merge(Histogram.of(np.float32([0])))
True
>>> choose_range(histogram)
Range(low=-1.0, high=2.0)
"""

from quantglow.profiling.histogram import (
    RANGE_METHODS,
    Histogram,
    Range,
    choose_range,
    squared_error,
)
from quantglow.profiling.profiles import Profile, merge_bodies
from quantglow.profiling.recording import profile

__all__ = [
    "RANGE_METHODS",
    "Histogram",
    "Profile",
    "Range",
    "choose_range",
    "merge_bodies",
    "profile",
    "squared_error",
]
