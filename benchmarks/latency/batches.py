"""Time for each sample of a batch, over the time of a batch of one sample.

All batch sizes take turns in one process, on four sets of samples as large as the largest batch, so
that neither a slow phase of the machine nor a repeated sample favours one of them.  Networks are
quantized once, at the largest batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.quantglow_runtime import compiled_model, compiled_whole
from benchmarks.support.runtime import PRECISIONS
from quantglow.ir.graph.graph import Graph
from quantglow.transforms.split_batch import split_batch

FEEDS = 4
Turn = Callable[[], float]


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    command.add_argument("--threads", type=positive, nargs="+", default=[1, 2])
    command.add_argument("--batch", type=positive, nargs="+", default=[8, 32])
    command.add_argument("--seconds", type=positive, default=15, help="duration of each comparison")
    command.add_argument("--folder", type=Path, help="folder of quantized networks for later runs")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table; 2 if a batch does not divide the largest one."""
    batches = sorted({1, *options.batch})
    if any(batches[-1] % batch for batch in batches):
        print(f"each batch must divide the largest, {batches[-1]}")
        return 2
    titles = (f"batch {batch}" for batch in batches[1:])
    print("| network | precision | threads | batch 1 ms |", " | ".join(titles), "| rounds |")
    print("| --- " * (len(batches) + 4) + "|")
    for name in options.models:
        for precision in options.precisions:
            graph = largest(name, precision, batches[-1], options.samples, options.folder)
            for threads in options.threads:
                turns = {batch: turn(name, graph, batch, threads) for batch in batches}
                cells = [name, precision, str(threads), *figures(turns, options.seconds)]
                print("|", " | ".join(cells), "|", flush=True)
    return 0


def largest(name: str, precision: str, batch: int, samples: int, folder: Path | None) -> Graph:
    """The network at the largest batch."""
    if folder is None:
        return compiled_model(name, precision, 1, batch, samples).graph
    path = folder / f"{name}-{precision}-{batch}.qgm"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiled_model(name, precision, 1, batch, samples).save(path)
    return compiled_whole(qg.load(path, num_threads=1)).graph


def turn(name: str, graph: Graph, batch: int, threads: int) -> Turn:
    """Function that runs one set of samples and gives milliseconds for each."""
    most = int(graph.inputs[0].type.shape[0])
    part = split_batch(graph, most // batch)
    assert part is not None, "the benchmark's networks treat samples apart"
    model = qg.compile(part, num_threads=threads)
    network = registry.network(name)
    images = network.samples(FEEDS * most, seed=1).reshape(FEEDS, -1, *network.input_shape(batch))
    at = 0

    def timed() -> float:
        nonlocal at
        at = (at + 1) % FEEDS
        start = time.perf_counter()
        for image in images[at]:
            model.run(None, {network.input_name: image})
        return 1e3 * (time.perf_counter() - start) / most

    return timed


def figures(turns: Mapping[int, Turn], seconds: int) -> list[str]:
    """Median milliseconds of the first, medians of the others' ratios to it, number of rounds."""
    rounds: list[Sequence[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rounds:
        first = len(rounds) % len(turns)
        order = [*list(turns)[first:], *list(turns)[:first]]
        actual = {batch: turns[batch]() for batch in order}
        rounds.append([actual[batch] for batch in turns])
    base, *others = np.array(rounds).T
    ratios = [f"{statistics.median(item / base):.3f}" for item in others]
    return [f"{statistics.median(base):.3f}", *ratios, str(len(rounds))]
