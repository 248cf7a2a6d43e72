"""Overhead of a trace: runs inside of ``quantglow.tracing`` beside runs outside of it.

One model takes three turns in a round: two without a trace and one with it, in rotated order.  The
two without show the noise.  The file of a trace is written between turns, and its time is not
counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import quantglow as qg
from benchmarks.latency.ratios import FEWEST_RUNS, TURN_SECONDS, Ratio, turn
from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.quantglow_runtime import compiled_model

NETWORKS = ("mnist", "ppocr_cls", "mobilenet_v2", "resnet50")

Turn = Callable[[], float]


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command, NETWORKS)
    add_samples(command)
    command.add_argument("--precision", choices=["int8", "float"], default="int8")
    command.add_argument("--threads", nargs="+", type=positive, default=[1])
    command.add_argument("--seconds", type=float, default=20.0, help="duration of each row")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print("| network | threads | ms | with a trace | quartiles | without, again | rounds |")
    print("| --- " * 7 + "|")
    for name in options.models:
        for threads in options.threads:
            model = compiled_model(name, options.precision, threads, 1, options.samples)
            (feeds,) = registry.network(name).feeds(1, seed=1)
            rounds = measure(model, feeds, options.seconds)
            print(markdown_row(name, threads, *rounds), flush=True)
    return 0


def measure(model: qg.CompiledModel, feeds: Feeds, seconds: float) -> tuple[Ratio, Ratio]:
    """Milliseconds with a trace, and without one again, beside those without."""
    runs = max(FEWEST_RUNS, int(TURN_SECONDS / (turn(model, feeds, FEWEST_RUNS) / 1e3)))
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "trace.json"

        def plain() -> float:
            return turn(model, feeds, runs)

        def traced() -> float:
            with qg.tracing(path):
                return turn(model, feeds, runs)

        return rotated([plain, traced, plain], seconds)


def rotated(turns: list[Turn], seconds: float) -> tuple[Ratio, Ratio]:
    """The second and third turn beside the first, for about ``seconds``; each begins in turn."""
    others: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    end = time.perf_counter() + seconds
    while len(others[0]) < FEWEST_RUNS or time.perf_counter() < end:
        first = len(others[0]) % len(turns)
        actual = {at: turns[at]() for at in [*range(first, len(turns)), *range(first)]}
        for rounds, item in zip(others, (actual[1], actual[2]), strict=True):
            rounds.append((item, actual[0]))
    return Ratio(others[0]), Ratio(others[1])


def markdown_row(network: str, threads: int, traced: Ratio, again: Ratio) -> str:
    middle, low, high = traced.percent()
    _, least, most = again.percent()
    cells = [
        network,
        str(threads),
        f"{again.milliseconds:.3f}",
        f"{middle:+.2f} %",
        f"{low:+.2f} to {high:+.2f} %",
        f"{least:+.2f} to {most:+.2f} %",
        str(len(traced.rounds)),
    ]
    return f"| {' | '.join(cells)} |"
