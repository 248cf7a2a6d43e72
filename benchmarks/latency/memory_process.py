"""Run one saved model in a process that imports nothing but its runtime.

Arguments: RUNTIME MODEL FEEDS.npz THREADS RUNS.  Prints as JSON the resident bytes ``before`` the
runtime is imported, when ``ready`` to run, and at the ``peak`` of the whole process, and the
``seconds`` from before to ready.
"""

from __future__ import annotations

import json
import sys
import time
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


def quantglow_llvm_linker(model: str, threads: int) -> Run:
    """quantglow without a linker of its own."""
    from unittest.mock import patch

    from quantglow.runtime.jit.linker import UnlinkableError

    refusal = UnlinkableError("switched off")
    patch("quantglow.runtime.jit.library.link", side_effect=refusal).start()
    return quantglow(model, threads)


def onnxruntime(model: str, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


RUNTIMES: dict[str, Callable[[str, int], Run]] = {
    "quantglow": quantglow,
    "quantglow, LLVM's linker": quantglow_llvm_linker,
    "onnxruntime": onnxruntime,
}


def main(runtime: str, model: str, feeds_file: str, threads: int, runs: int) -> None:
    with np.load(feeds_file, allow_pickle=False) as archive:
        feeds = dict(archive)
    before, start = status_nbytes("VmRSS"), time.perf_counter()
    run = RUNTIMES[runtime](model, threads)
    seconds = time.perf_counter() - start
    ready = status_nbytes("VmRSS")
    for _ in range(runs):
        run(feeds)
    peak = status_nbytes("VmHWM")
    print(json.dumps({"before": before, "ready": ready, "peak": peak, "seconds": seconds}))


if __name__ == "__main__":
    _, name, file, samples, count, repeats = sys.argv
    main(name, file, samples, int(count), int(repeats))
