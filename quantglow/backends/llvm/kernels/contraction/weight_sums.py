"""Sums over the weights of each output channel, in little memory."""

from __future__ import annotations

import numpy as np

from quantglow.foreign_types import Array

CHUNK_ELEMENTS = 2**17
"""Weights that are widened at a time: a wide copy of all would be eight times their size."""


def channel_sums(w: Array, magnitudes: bool = False) -> Array:
    """int64 [O]: integer weights [..., O], or their magnitudes, added for each output channel."""
    rows = w.reshape(-1, w.shape[-1])
    step = max(1, CHUNK_ELEMENTS // max(1, rows.shape[1]))
    total = np.zeros(rows.shape[1], np.int64)
    for start in range(0, len(rows), step):
        wide = rows[start : start + step].astype(np.int32)
        total += (np.abs(wide) if magnitudes else wide).sum(axis=0, dtype=np.int64)
    return total
