"""Latencies of an ONNX model in onnxruntime and in OpenVINO, for child processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from quantglow.evaluation.latencies import call_latencies
from quantglow.ort.session import Session
from quantglow.support.arrays import Array


def onnxruntime_latencies(
    arrays: Sequence[Array], path: str, names: Sequence[str], threads: int, seconds: float
) -> list[Array]:
    """Seconds of each call, as users run it, for about ``seconds``."""
    session = Session(path, threads, exact_sums=False)
    run = partial(session.run, dict(zip(names, arrays, strict=True)))
    return [np.array(call_latencies(run, seconds))]


def openvino_latencies(
    arrays: Sequence[Array], path: str, names: Sequence[str], threads: int, seconds: float
) -> list[Array]:
    """Seconds of each call, with OpenVINO's settings for latency, for about ``seconds``."""
    import openvino  # optional

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
    }
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    feeds = dict(zip(names, arrays, strict=True))
    run = partial(request.infer, feeds, share_inputs=True, share_outputs=True)
    return [np.array(call_latencies(run, seconds))]
