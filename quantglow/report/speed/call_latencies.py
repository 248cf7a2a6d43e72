"""Latencies of a function."""

from __future__ import annotations

import time
from collections.abc import Callable

WARMUPS = 2


def call_latencies(run: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call, one after the other, for about ``seconds``, after the first two."""
    for _ in range(WARMUPS):
        run()
    found, end = list[float](), time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found
