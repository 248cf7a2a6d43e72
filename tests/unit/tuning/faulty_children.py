"""Children that fail for some choices, in the place of those that measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from quantglow.support.arrays import Array

Jobs = Sequence[tuple[str, Any, int]]


def unroll(choice: Sequence[Any]) -> int:
    """The number of unrolled steps: what a choice does here."""
    return int(choice[3])


def crashing(arrays: Sequence[Array], jobs: Jobs, samples: int, **facts: Any) -> list[Array]:
    """2 crashes, 4 raises, 8 is timed."""
    for _, choice, _ in jobs:
        if unroll(choice) == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if unroll(choice) == 4:
            raise ValueError("no such instruction")
    return measured(len(jobs), samples)


def hanging(arrays: Sequence[Array], jobs: Jobs, samples: int, **facts: Any) -> list[Array]:
    """2 never ends."""
    if any(unroll(choice) == 2 for _, choice, _ in jobs):
        time.sleep(60)
    return measured(len(jobs), samples)


def measured(count: int, samples: int) -> list[Array]:
    """Times of choices of which all are timed: 1 s, the default 2 s."""
    seconds = np.ones((count, samples))
    return [seconds, 2 * seconds, np.zeros(count, np.int8)]
