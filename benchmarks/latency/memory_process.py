"""Run one saved model in a process that imports nothing but its runtime.

Arguments: RUNTIME MODEL FEEDS.npz THREADS RUNS.  Prints resident bytes as JSON: ``before`` the
runtime is imported, ``ready`` to run, and the ``peak`` of the whole process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.support.process_memory import status_nbytes

Feeds = dict[str, Any]
Run = Callable[[Feeds], object]


def quantglow(model: str, threads: int) -> Run:
    import quantglow as qg

    compiled = qg.load(model, num_threads=threads)
    return lambda feeds: compiled.run(None, feeds)


def onnxruntime(model: str, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def main(runtime: str, model: str, feeds_file: str, threads: int, runs: int) -> None:
    with np.load(feeds_file, allow_pickle=False) as archive:
        feeds = dict(archive)
    before = status_nbytes("VmRSS")
    run = {"quantglow": quantglow, "onnxruntime": onnxruntime}[runtime](model, threads)
    ready = status_nbytes("VmRSS")
    for _ in range(runs):
        run(feeds)
    print(json.dumps({"before": before, "ready": ready, "peak": status_nbytes("VmHWM")}))


if __name__ == "__main__":
    _, name, file, samples, count, repeats = sys.argv
    main(name, file, samples, int(count), int(repeats))
