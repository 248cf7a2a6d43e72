"""Models in which nodes decide sizes, in float and int8, beside onnxruntime.

The models and samples are those of ``tests.support.late_models``.  The runtimes take turns in one
process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

import quantglow as qg
from benchmarks.latency.weight_groups import onnxruntime_of
from benchmarks.support.arguments import positive
from tests.support.late_models import BUILDERS, MANY

MODELS = ("detector", "rows", "crops", "loop", "decoder")
SIZES = (MANY, 1, 0)

Call = Callable[[Mapping[str, Any]], Any]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    command.add_argument("--threads", nargs="+", type=positive, default=[1])
    command.add_argument("--seconds", type=positive, default=2, help="duration of each comparison")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print("| model | late size | threads | runtime | ready s | ms | times onnxruntime |")
    print("| --- " * 7 + "|")
    for name in options.models:
        for threads in options.threads:
            for row in compared(name, threads, options.seconds):
                print("|", " | ".join([name, *row]), "|", flush=True)
    return 0


def compared(name: str, threads: int, seconds: float) -> Iterator[list[str]]:
    """A row for each late size and runtime."""
    late = BUILDERS[name]()
    model, samples = late.model, late.samples()

    def quantize() -> Any:
        return qg.quantize_and_compile(
            model, samples, num_threads=threads, progress=False, verify=False
        )

    makers: dict[str, Callable[[], Any]] = {
        "float": lambda: qg.compile(model, num_threads=threads),
        "int8": quantize,
    }
    calls, ready = dict[str, Call](), dict[str, float]()
    for runtime, make in makers.items():
        start = time.perf_counter()
        calls[runtime] = partial(make().run, None)
        ready[runtime] = time.perf_counter() - start
    calls["onnxruntime"] = onnxruntime_of(model, threads)
    for size in SIZES:
        times = timed(calls, late.sample(size, 50), seconds)
        for runtime, milliseconds in times.items():
            ratio = times["onnxruntime"] / milliseconds
            facts = f"{ready.get(runtime, 0):.1f}", f"{milliseconds:.3f}", f"{ratio:.2f}"
            yield [str(size), str(threads), runtime, *facts]


def timed(calls: Mapping[str, Call], feeds: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """The median of each call, in milliseconds; all take turns."""
    times: dict[str, list[float]] = {runtime: [] for runtime in calls}
    for call in calls.values():
        call(feeds)
        call(feeds)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for runtime, call in calls.items():
            start = time.perf_counter()
            call(feeds)
            times[runtime].append(time.perf_counter() - start)
    return {runtime: 1e3 * median(each) for runtime, each in times.items()}
