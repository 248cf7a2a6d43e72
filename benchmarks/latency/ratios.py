"""Latency of models that ``accuracy --save`` wrote, each against the first quantizer's.

Two models take turns in one process; each turn begins with a run that is not timed.  A ratio is the
median over the rounds of the ratio of two neighbouring turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support.arguments import add_models, positive
from benchmarks.support.quantglow_runtime import compiled_whole, saved_model_file

TURN_SECONDS, FEWEST_RUNS = 0.02, 3
QUANTIZERS = ("quantglow", "quantglow int16")


@dataclass(frozen=True)
class Ratio:
    """Milliseconds of the model and of the baseline in each round, side by side."""

    rounds: Sequence[tuple[float, float]]

    @property
    def milliseconds(self) -> float:
        """Median milliseconds of the model."""
        return statistics.median(item for item, _ in self.rounds)

    def percent(self) -> tuple[float, float, float]:
        """Additional time of the model in percent: the median, and the quartiles."""
        more = [100 * (item / base - 1) for item, base in self.rounds]
        low, middle, high = statistics.quantiles(more, n=4)
        return middle, low, high


def measure(model: qg.CompiledModel, base: qg.CompiledModel, feeds: Feeds, seconds: float) -> Ratio:
    """Take turns for about ``seconds``; the model that begins alternates."""
    runs = max(FEWEST_RUNS, int(TURN_SECONDS / (turn(base, feeds, FEWEST_RUNS) / 1e3)))
    rounds: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < FEWEST_RUNS or time.perf_counter() < end:
        if len(rounds) % 2:
            other = turn(base, feeds, runs)
            rounds.append((turn(model, feeds, runs), other))
        else:
            rounds.append((turn(model, feeds, runs), turn(base, feeds, runs)))
    return Ratio(rounds)


def turn(model: qg.CompiledModel, feeds: Feeds, runs: int) -> float:
    """Median milliseconds, after a run that brings the model into the caches."""
    model.run(None, feeds)
    collected = []
    for _ in range(runs):
        start = time.perf_counter()
        model.run(None, feeds)
        collected.append(time.perf_counter() - start)
    return 1e3 * statistics.median(collected)


def markdown_row(network: str, quantizer: str, ratio: Ratio) -> str:
    middle, low, high = ratio.percent()
    cells = [
        network,
        quantizer,
        f"{ratio.milliseconds:.3f}",
        f"{middle:+.1f} %",
        f"{low:+.1f} to {high:+.1f} %",
        str(len(ratio.rounds)),
    ]
    return f"| {' | '.join(cells)} |"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    command.add_argument(
        "--folder", type=Path, required=True, help="folder that accuracy --save wrote"
    )
    command.add_argument("--quantizers", nargs="+", default=QUANTIZERS, metavar="NAME")
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument("--seconds", type=float, default=4.0, help="duration of each row")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table; the first row of a network is the baseline against itself."""
    print("| network | quantizer | ms | longer | quartiles of the rounds | rounds |")
    print("| --- " * 6 + "|")
    for name in options.models:
        (feeds,) = registry.network(name).feeds(1, seed=1)
        paths = [saved_model_file(options.folder, name, q) for q in options.quantizers]
        base, *others = (
            compiled_whole(qg.load(path, num_threads=options.threads))
            for path in (paths[0], *paths)
        )
        for quantizer, model in zip(options.quantizers, others, strict=True):
            ratio = measure(model, base, feeds, options.seconds)
            print(markdown_row(name, quantizer, ratio), flush=True)
    return 0
