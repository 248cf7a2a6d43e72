"""Compile a model and call it at a few new shapes, in a process that imports nothing else first.

Arguments: WAY NETWORK MODEL DATA THREADS BEGUN.  WAY is ``compile`` or ``quantize``, DATA a file of
calibration samples (.npz).  Prints the steps as JSON: the start (from ``BEGUN``, ``time.time()`` in
the parent, until quantglow is imported), the function that compiles, and the first call at each
size; then the seconds of later calls at each size: of the program that serves it, and of one of its
own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

SIZES = {
    "minilm": ((128,), (40,), (72,)),
    "ppocr_rec": ((320,), (480,), (376,)),
}
"""The sizes of the calls by network; the first are those of the calibration samples."""

TURNS = 20
"""Runs of both programs by turns, of which the median counts."""


@dataclass
class Step:
    """Wall time, CPU time of all threads and time of the stages in it, in seconds; kernels that
    LLVM compiled."""

    name: str
    seconds: float
    cpu: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    kernels: int = 0


def timed(name: str, call: Callable[[], object]) -> Step:
    """The step of a call."""
    from quantglow.support.timeline import COMPILER, recording

    start, cpu = time.perf_counter(), time.process_time()
    with recording() as trace:
        call()
    step = Step(name, time.perf_counter() - start, time.process_time() - cpu)
    for event in trace.events:
        step.stages[event.name] = step.stages.get(event.name, 0.0) + event.end - event.begin
        step.kernels += event.category == COMPILER
    return step


def run(way: str, name: str, model: str, data: str, threads: int, begun: float) -> dict[str, Any]:
    """The steps of one process, and the seconds of later calls."""
    import quantglow as qg

    steps = [Step("start", time.time() - begun)]
    options: dict[str, Any] = {"num_threads": threads}
    models: list[Any] = []
    if way == "compile":
        steps.append(timed("compile", lambda: models.append(qg.compile(model, **options))))
    else:
        options |= {"verify": False, "progress": False}
        quantize = qg.quantize_and_compile
        steps.append(timed("compile", lambda: models.append(quantize(model, data, **options))))

    import numpy as np

    from benchmarks.networks.free_networks import NETWORKS

    rng = np.random.default_rng(0)
    calls = {sizes[0]: NETWORKS[name].feeds(sizes, rng) for sizes in SIZES[name]}
    for size, feeds in calls.items():
        steps.append(timed(f"{size}", lambda feeds=feeds: models[0].run(None, feeds)))  # type: ignore[misc]
    later = [(size, *steady_seconds(models[0], feeds)) for size, feeds in calls.items()]
    return {"steps": [asdict(step) for step in steps], "later": later}


def steady_seconds(model: Any, feeds: Any) -> tuple[float, float]:
    """Seconds of a run of the program that serves some feeds, and of one of their own, by turns."""
    programs = model.specialisations
    serving = programs.at(feeds)
    single = programs.compiler.compile(programs.graph_for(serving.case.shape_map)).executable
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for executable, seconds in zip((serving.build.executable, single), spent, strict=True):
            start = time.perf_counter()
            executable.run(feeds)
            seconds.append(time.perf_counter() - start)
    return median(spent[0]), median(spent[1])


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the reply
    chosen, network, file, samples, count, clock = sys.argv[1:]
    print(json.dumps(run(chosen, network, file, samples, int(count), float(clock))), file=replies)
