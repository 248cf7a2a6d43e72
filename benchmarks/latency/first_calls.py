"""First calls at new shapes: where their time goes, with an empty and with a filled cache.

A network with free dimensions is compiled (``compile``), or quantized and compiled (``quantize``),
and called at three sizes, each time in a new process.  A round has two processes for each network
and way: with an empty cache, and with what the first one left in the cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.latency.first_calls_process import SIZES, Step
from benchmarks.networks.free_networks import NETWORKS
from benchmarks.support.arguments import add_samples, positive
from benchmarks.support.environment import environment
from benchmarks.support.processes import ROOT, environment_with, module_command

WAYS = ("compile", "quantize")
CACHES = ("empty", "filled")
STAGES = {
    "graphs": ("graph of shapes",),
    "of them stored weights": ("weights of a file",),
    "lower, plan": ("lower", "plan"),
    "emit": ("emit",),
    "wait for LLVM": ("compile",),
    "LLVM": ("LLVM",),
    "link": ("link",),
    "load": ("load program", "read program"),
}
"""Column -> the stages whose seconds it adds up; LLVM's are those of all threads together."""


Later = tuple[int, float, float]
"""A size, and the seconds of later calls at it: of the program that serves it, and of its own."""


@dataclass(frozen=True)
class Timing:
    """One process."""

    network: str
    way: str
    cache: str
    steps: tuple[Step, ...]
    later: tuple[Later, ...]


def measure(name: str, ways: Sequence[str], samples: int, threads: int) -> Iterator[Timing]:
    """Timings of one round.  Raises ``CalledProcessError``."""
    network = NETWORKS[name]
    model = network.source()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        feeds = network.calibration(samples)
        stacked = {key: np.concatenate([each[key] for each in feeds]) for key in feeds[0]}
        np.savez(data, allow_pickle=False, **stacked)
        for way in ways:
            cache = Path(folder) / way
            for state in CACHES:
                arguments = (way, name, model, data, threads)
                yield Timing(name, way, state, *timed(arguments, cache))


def timed(arguments: Iterable[object], cache: Path) -> tuple[tuple[Step, ...], tuple[Later, ...]]:
    """The steps of one process, and the seconds of its later calls."""
    command = module_command("latency.first_calls_process", *arguments, time.time())
    pipe, variables = subprocess.PIPE, environment_with(cache)
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, text=True, stdout=pipe)
    data: dict[str, Any] = json.loads(done.stdout)
    later = ((int(size), float(ours), float(single)) for size, ours, single in data["later"])
    return tuple(Step(**step) for step in data["steps"]), tuple(later)


def rows(timings: Sequence[Timing]) -> list[str]:
    """Markdown rows: for each network, way and cache the medians of each step over the rounds."""
    groups: dict[tuple[str, str, str], list[Timing]] = {}
    for timing in timings:
        groups.setdefault((timing.network, timing.way, timing.cache), []).append(timing)
    return [
        f"| {' | '.join([*key, *cells])} |"
        for key, group in groups.items()
        for cells in map(_cells, zip(*(timing.steps for timing in group), strict=True))
    ]


def _cells(steps: Sequence[Step]) -> list[str]:
    """A step in all rounds."""
    sums = [[sum(s.stages.get(n, 0.0) for n in names) for s in steps] for names in STAGES.values()]
    whole = [median(s.seconds for s in steps), median(s.cpu for s in steps)]
    seconds = (*whole, *map(median, sums))
    kernels = median(step.kernels for step in steps)
    return [steps[0].name, *(f"{each:.2f}" for each in seconds), f"{kernels:.0f}"]


def later_rows(timings: Sequence[Timing]) -> list[str]:
    """Markdown rows: for each network, way and size the medians of later calls, and their ratio."""
    groups: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for timing in timings:
        for size, ours, single in timing.later:
            groups.setdefault((timing.network, timing.way, size), []).append((ours, single))
    return [
        f"| {name} | {way} | {size} | {1e3 * median(ours for ours, _ in pairs):.1f} "
        f"| {1e3 * median(single for _, single in pairs):.1f} "
        f"| {median(ours / single for ours, single in pairs):.2f} |"
        for (name, way, size), pairs in groups.items()
    ]


def later_head() -> str:
    header = ("network", "way", "size", "for all shapes ms", "its own ms", "ratio")
    return f"| {' | '.join(header)} |\n|{' --- |' * len(header)}"


def table_head() -> str:
    header = ("network", "way", "cache", "step", "s", "CPU", *STAGES, "kernels")
    return f"| {' | '.join(header)} |\n|{' --- |' * len(header)}"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    command.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    add_samples(command, 4)
    command.add_argument("--threads", type=positive, default=2)
    command.add_argument("--rounds", type=positive, default=3)
    command.add_argument("--output", type=Path, help="folder for first_calls.json and .md")


def run(options: argparse.Namespace) -> int:
    """Print the tables; write ``first_calls.json`` with every round and ``first_calls.md``."""
    print(table_head())
    timings: list[Timing] = []
    for name in options.models:
        rounds = (
            measure(name, options.ways, options.samples, options.threads)
            for _ in range(options.rounds)
        )
        actual = [timing for one in rounds for timing in one]
        print("\n".join(rows(actual)), flush=True)
        timings += actual
    steady = "\n".join([later_head(), *later_rows(timings)])
    print(f"\n{steady}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        text = "\n".join([table_head(), *rows(timings)])
        (options.output / "first_calls.md").write_text(f"{text}\n\n{steady}\n")
        written = {"environment": environment(), "results": [_to_json(each) for each in timings]}
        (options.output / "first_calls.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0


def _to_json(timing: Timing) -> dict[str, Any]:
    return {**vars(timing), "steps": [vars(step) for step in timing.steps]}
