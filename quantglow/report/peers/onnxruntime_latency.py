"""Latency of an ONNX model in onnxruntime; ``report.peers.peers`` calls it in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from quantglow.backends.onnxruntime.session import Session
from quantglow.foreign_types import Array
from quantglow.report.speed.call_latencies import call_latencies


def onnxruntime_latencies(
    arrays: Sequence[Array], path: str, names: Sequence[str], threads: int, seconds: float
) -> list[Array]:
    """Seconds of each call, as users run it, for about ``seconds``."""
    session = Session(path, threads, exact_sums=False)
    run = partial(session.run, dict(zip(names, arrays, strict=True)))
    return [np.array(call_latencies(run, seconds))]
