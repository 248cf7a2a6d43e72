"""Many shapes in a row, each seen for the first time: total time, first calls, memory.

A network with free dimensions is saved once.  Each runtime loads it in a process of its own, with
an empty kernel cache, and runs every shape twice; the second call shows what the first one cost
beside the computation.  onnxruntime runs the float model.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.networks.network import Feeds, Network
from benchmarks.support.arguments import add_samples, positive
from benchmarks.support.processes import ROOT, environment_with, module_command
from benchmarks.support.runtime import PRECISIONS

SEED = 7


def text_lines(size: int, rng: np.random.Generator) -> Feeds:
    """A line of text of this width."""
    return {"x": rng.uniform(-1, 1, (1, 3, 48, size)).astype(np.float32)}


def tokens(size: int, rng: np.random.Generator) -> Feeds:
    """A sentence of so many tokens."""
    return {"ids": rng.integers(1, 30_000, (1, size))}


@dataclass(frozen=True)
class Sizes:
    """The free size of a network: its smallest and largest value, and feeds of a size."""

    low: int
    high: int
    feeds: Callable[[int, np.random.Generator], Feeds]


FREE = {
    "ppocr_rec": Sizes(64, 1600, text_lines),
    "minilm": Sizes(16, 400, tokens),
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", default=list(FREE), choices=list(FREE))
    command.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    command.add_argument("--shapes", type=positive, default=150, help="different shapes")
    command.add_argument("--threads", type=positive, default=1)
    add_samples(command)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print(
        "| network | runtime | all shapes s | first two s | new shape ms | worst ms | again ms "
        "| grown MB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.models:
        network = registry.network(name)
        with tempfile.TemporaryDirectory() as folder:
            for runtime, path in saved_models(network, options, Path(folder)):
                arguments = (name, path, options.threads, options.shapes)
                cells = " | ".join(measured(*arguments, Path(folder) / runtime))
                print(f"| {name} | {runtime} | {cells} |", flush=True)
    return 0


def saved_models(
    network: Network, options: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, Path]]:
    """The name of each runtime, and the file that it loads.

    Ranges come from a profile, because accuracy recovery does not matter here.
    """
    feeds = network.feeds(options.samples)
    for precision in options.precisions:
        path = folder / f"{precision}.qgm"
        if precision == "int8":
            profile = qg.profile(network.path(), feeds, progress=False)
            compiled: Any = qg.quantize_and_compile(network.path(), profile, verify=False)
        else:
            compiled = qg.compile(network.path())
            compiled.run(None, feeds[0])
        compiled.save(path)
        yield f"quantglow {precision}", path
    yield "onnxruntime float", network.path()


def measured(name: str, path: Path, threads: int, count: int, cache: Path) -> list[str]:
    """Cells of one process.  The first two shapes compile programs; all others should not."""
    done = subprocess.run(
        module_command("latency.shapes", name, path, threads, count),
        cwd=ROOT,
        env=environment_with(cache),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout)
    first, again = found["first"], found["again"]
    extra = [one - other for one, other in zip(first[2:], again[2:], strict=True)]
    return [
        f"{sum(first):.2f}",
        f"{sum(first[:2]):.2f}",
        f"{1000 * median(extra):.2f}",
        f"{1000 * max(extra):.1f}",
        f"{1000 * median(again[2:]):.1f}",
        f"{(found['peaks'][-1] - found['peaks'][2]) / 1e6:.0f}",
    ]


def worker(name: str, path: str, threads: int, count: int) -> dict[str, list[float]]:
    """Seconds of the first and second call at each shape, and the peak memory after them."""
    found: dict[str, list[float]] = {"first": [], "again": [], "peaks": []}
    call, sizes, rng = opened(path, threads), FREE[name], np.random.default_rng(SEED)
    numbers = np.arange(sizes.low, sizes.high + 1)
    for size in rng.permutation(numbers)[:count].tolist():
        feeds = sizes.feeds(size, rng)
        for key in ("first", "again"):
            start = time.perf_counter()
            call(feeds)
            found[key].append(time.perf_counter() - start)
        found["peaks"].append(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return found


def opened(path: str, threads: int) -> Callable[[Feeds], Any]:
    """A function that runs the model in a file."""
    if path.endswith(".qgm"):
        compiled = qg.load(path, num_threads=threads)
        return lambda feeds: compiled.run(None, feeds)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


if __name__ == "__main__":
    model, file, *numbers = sys.argv[1:]
    print(json.dumps(worker(model, file, *map(int, numbers))))
