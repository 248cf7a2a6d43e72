"""Latencies, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

ROUNDS = 7


def medians(
    runs: Mapping[str, Callable[[], object]], seconds: float = 1.0, rounds: int = ROUNDS
) -> dict[str, float]:
    """Median time in seconds of one call of each callable; they take turns, round by round.

    ``seconds`` is about the time spent on each.  Every round is longer than the clock's resolution;
    the first call of each callable warms it up and sets its calls in a round.
    """
    counts = {}
    for name, run in runs.items():
        run()
        once = _spent(run, 1)
        counts[name] = max(1, int(seconds / rounds / max(once, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_spent(run, counts[name]) / counts[name])
    return {name: float(np.median(found)) for name, found in times.items()}


def _spent(run: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start
