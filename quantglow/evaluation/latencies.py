"""Latencies of functions, measured side by side, and a note on a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from quantglow.support.processes.system import busy_processors

BUSY = 0.5
"""Processors in use by other programs from which on figures are doubtful."""

WARMUPS = 2

ROUNDS, FEWEST_ROUNDS = 7, 3
"""Turns of each callable, and the number after which too long a measurement ends."""


def busy_note() -> str:
    """A note if other programs use the processors now; nothing of this process may run."""
    load = busy_processors()
    if load is None or load < BUSY:
        return ""
    return f"the machine is busy ({load:.1f} processors in use): measure again when it is idle"


def call_latencies(run: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call, one after the other, for about ``seconds``, after the first two."""
    for _ in range(WARMUPS):
        run()
    latencies, end = list[float](), time.perf_counter() + seconds
    while not latencies or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        latencies.append(time.perf_counter() - start)
    return latencies


def medians(runs: Mapping[str, Callable[[], object]], seconds: float = 1.0) -> dict[str, float]:
    """Median time in seconds of one call of each callable; they take turns, round by round.

    ``seconds`` is about the time spent on each, at most that of ``FEWEST_ROUNDS`` rounds more.
    Every round is longer than the clock's resolution; the first call of each callable warms it up,
    and the second sets its calls in a round.
    """
    counts, end = {}, time.perf_counter() + seconds * len(runs)
    for name, run in runs.items():
        run()
        once = _spend(run, 1)
        counts[name] = max(1, int(seconds / ROUNDS / max(once, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS):
        if number >= FEWEST_ROUNDS and time.perf_counter() > end:
            break
        for name, run in runs.items():
            times[name].append(_spend(run, counts[name]) / counts[name])
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def _spend(run: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start


def measure_loaded(
    submit: Callable[[], Future[Any]], in_flight: int, seconds: float
) -> tuple[list[float], float]:
    """Seconds of each call while ``in_flight`` of them are under way, and of all together.

    Raises the first error of a call.
    """
    room, latencies, errors = threading.Semaphore(in_flight), list[float](), list[BaseException]()

    def noting(start: float) -> Callable[[Future[Any]], None]:
        def done(future: Future[Any]) -> None:
            latencies.append(time.perf_counter() - start)
            if (error := future.exception()) is not None:
                errors.append(error)
            room.release()

        return done

    begin = time.perf_counter()
    while not errors and (not latencies or time.perf_counter() < begin + seconds):
        room.acquire()
        start = time.perf_counter()
        submit().add_done_callback(noting(start))
    for _ in range(in_flight):
        room.acquire()
    if errors:
        raise errors[0]
    return latencies, time.perf_counter() - begin
