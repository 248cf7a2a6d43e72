"""Run one saved model at many shapes, each twice, in a process of its own.

Arguments: RUNTIME NETWORK MODEL THREADS SHAPES WHILE_COMPILING.  Prints as JSON the seconds of
loading, those of the first and the second call at each shape, and the peak of resident bytes after
each shape.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks.free_networks import NETWORKS, SEED, drawn
from benchmarks.networks.network import Feeds
from benchmarks.support.process_memory import status_nbytes

Run = Callable[[Feeds], object]


@dataclass
class Timing:
    """Seconds of loading, of the first and second call at each shape; peak bytes after them."""

    load: float = 0.0
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)


def opened(runtime: str, path: Path, threads: int, while_compiling: Any) -> Run:
    """A function that runs the model in a file; every shape is left free."""
    if runtime.startswith("quantglow"):
        import quantglow as qg

        options: dict[str, Any] = {"code": "use", "while_compiling": while_compiling}
        compiled = qg.load(path, num_threads=threads, **options)
        return lambda feeds: compiled.run(None, feeds)
    from benchmarks.support import peer_runtimes

    if runtime.startswith("openvino"):
        return peer_runtimes.openvino_compiled(runtime, path, threads).run
    return peer_runtimes.onnxruntime_session(runtime, path, threads).run


def seconds_of(run: Run, feeds: Feeds) -> float:
    start = time.perf_counter()
    run(feeds)
    return time.perf_counter() - start


def timing(
    runtime: str, name: str, path: Path, threads: int, count: int, while_compiling: str
) -> Timing:
    """The timing of one process; all runtimes get the same inputs in the same order."""
    network, rng, actual = NETWORKS[name], np.random.default_rng(SEED), Timing()
    start = time.perf_counter()
    run = opened(runtime, path, threads, while_compiling)
    actual.load = time.perf_counter() - start
    for sizes in drawn(network.ranges, count):
        feeds = network.feeds(sizes, rng)
        actual.first.append(seconds_of(run, feeds))
        actual.again.append(seconds_of(run, feeds))
        actual.peaks.append(status_nbytes("VmHWM"))
    return actual


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the reply
    chosen, model, file, threads, count, answering = sys.argv[1:]
    actual = timing(chosen, model, Path(file), int(threads), int(count), answering)
    print(json.dumps(asdict(actual)), file=replies)
