"""Latency of an ONNX model in OpenVINO; ``report.peers.peers`` calls it in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from quantglow.foreign_types import Array
from quantglow.report.speed.call_latencies import call_latencies


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
