"""One runtime under full load, in a process of its own.

Arguments: RUNTIME NETWORK MODEL THREADS SECONDS.  Prints as JSON the inferences in a second, and
the median and 99th percentile of their seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from quantglow.evaluation.latencies import measure_loaded

OURS = "quantglow"
PEERS = ("onnxruntime", "openvino")
DISTINCT_FEEDS, EVALUATION_SEED = 4, 1
IN_FLIGHT = 2
"""Inferences under way for each stream: one runs, one waits."""
WARMUP_SECONDS = 0.5

Submit = Callable[[Feeds], Future[Any]]


@contextmanager
def quantglow_queue(path: Path, threads: int) -> Iterator[tuple[Submit, int]]:
    import quantglow as qg

    compiled: Any = qg.load(path, num_threads=threads)
    with qg.InferQueue(compiled) as queue:
        yield queue.submit, threads


@contextmanager
def onnxruntime_queue(path: Path, threads: int) -> Iterator[tuple[Submit, int]]:
    from benchmarks.support.peer_runtimes import onnxruntime_session

    session = onnxruntime_session(PEERS[0], path, 1)
    with ThreadPoolExecutor(threads) as pool:
        yield lambda feeds: pool.submit(session.run, feeds), threads


@contextmanager
def openvino_queue(path: Path, threads: int) -> Iterator[tuple[Submit, int]]:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
    }
    model = openvino.Core().compile_model(path / "model.xml", "CPU", settings)
    queue = openvino.AsyncInferQueue(model, 0)
    queue.set_callback(lambda request, future: future.set_result(request.get_output_tensor(0)))

    def submit(feeds: Feeds) -> Future[Any]:
        future: Future[Any] = Future()
        queue.start_async(feeds, future, share_inputs=True)
        return future

    yield submit, len(queue)
    queue.wait_all()


QUEUES = {OURS: quantglow_queue, PEERS[0]: onnxruntime_queue, PEERS[1]: openvino_queue}


def figures(
    runtime: str, network: str, path: Path, threads: int, seconds: float
) -> dict[str, float]:
    """Rate and percentiles of one runtime."""
    feeds = cycle(registry.network(network).feeds(DISTINCT_FEEDS, EVALUATION_SEED, 1))
    with QUEUES[runtime](path, threads) as (submit, streams):

        def next_one() -> Future[Any]:
            return submit(next(feeds))

        measure_loaded(next_one, IN_FLIGHT * streams, WARMUP_SECONDS)
        actual, whole = measure_loaded(next_one, IN_FLIGHT * streams, seconds)
    p50, p99 = np.percentile(actual, [50, 99])
    return {"rate": len(actual) / whole, "p50": float(p50), "p99": float(p99)}


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the reply
    chosen, name, file, threads_text, seconds_text = sys.argv[1:]
    result = figures(chosen, name, Path(file), int(threads_text), float(seconds_text))
    print(json.dumps(result), file=replies)
