"""Histograms as plain data that a page draws: few bars, and the range that integers store."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantglow.profiling.histogram import Histogram

BARS = 56
"""Maximum number of bars."""

Range = tuple[float, float]


def drawn(histogram: Histogram, stored: Range | None = None) -> dict[str, Any]:
    """Counts in equal bars between the reals ``low`` and ``high``; ``stored`` is the range of the
    integers, None for a float tensor."""
    edges, counts = histogram.edges, histogram.counts
    group = -(-len(counts) // BARS)
    bars = np.add.reduceat(counts, np.arange(0, len(counts), group))
    low, width = float(edges[0]), float(edges[1] - edges[0])
    return {
        "low": low,
        "high": low + width * group * len(bars),
        "counts": bars.tolist(),
        "range": None if stored is None else list(stored),
    }
