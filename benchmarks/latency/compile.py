"""Seconds from the start of a process to the compiled int8 model, stage by stage.

Every figure is from a new process.  A round has three: with an empty cache, with the kernels that
the first one left in the disk cache, and with its profile in place of the samples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.networks import registry
from benchmarks.networks.network import Network
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.environment import environment
from benchmarks.support.processes import ROOT, environment_with, module_command

SAMPLES, ROUNDS = 4, 5
WAYS = ("cold", "cached kernels", "stored profile")
STAGES = {
    "start": ("start",),
    "import": ("import",),
    "profile": ("profile",),
    "ranges and scales": ("prepare",),
    "rounding": ("quantize",),
    "lower and plan": ("lower", "plan"),
    "generate code": ("generate code",),
    "all": ("all",),
    "CPU": ("cpu",),
}
"""Column -> the stages whose seconds it adds up."""
MEGA = 1e6


@dataclass(frozen=True)
class Timing:
    """One process: the seconds of each stage, and its peak memory."""

    network: str
    way: str
    seconds: dict[str, float]
    peak_nbytes: int


def measure(network: Network, samples: int, threads: int, rounds: int) -> Iterator[Timing]:
    """Timings of every round and way.  Raises ``CalledProcessError``."""
    model = network.path()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            data, profile = Path(folder) / "samples.npz", Path(folder) / "profile.npz"
            stacked = network.samples(samples)
            np.savez(data, allow_pickle=False, **{network.input_name: stacked})
            for way in WAYS:
                inputs = profile if way == WAYS[-1] else data
                arguments = [str(model), str(inputs), str(threads)]
                yield Timing(network.name, way, **timed(arguments, Path(folder) / "cache", profile))


def timed(arguments: Sequence[str], cache: Path, profile: Path) -> dict[str, Any]:
    """Fields that one process prints; it stores its profile if the file does not exist."""
    stored = [] if profile.exists() else [profile]
    command = module_command("latency.compile_process", *arguments, time.time(), *stored)
    variables = environment_with(cache)
    pipe = subprocess.PIPE
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, text=True, stdout=pipe)
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def row(timings: Sequence[Timing]) -> str:
    """One Markdown row: medians over the rounds of one network and way."""
    cells = [timings[0].network, timings[0].way]
    for stages in STAGES.values():
        spent = (sum(t.seconds.get(stage, 0.0) for stage in stages) for t in timings)
        cells.append(f"{median(spent):.2f}")
    cells.append(f"{median(t.peak_nbytes for t in timings) / MEGA:.0f}")
    return f"| {' | '.join(cells)} |"


def table_head() -> str:
    header = ("network", "way", *STAGES, "peak MB")
    return f"| {' | '.join(header)} |\n|{' --- |' * len(header)}"


def rows(timings: Sequence[Timing]) -> list[str]:
    groups: dict[tuple[str, str], list[Timing]] = {}
    for timing in timings:
        groups.setdefault((timing.network, timing.way), []).append(timing)
    return [row(group) for group in groups.values()]


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command, ["resnet50"])
    add_samples(command, SAMPLES)
    command.add_argument("--threads", type=positive, default=2)
    command.add_argument("--rounds", type=positive, default=ROUNDS)
    command.add_argument("--output", type=Path, help="folder for compile.json and compile.md")


def run(options: argparse.Namespace) -> int:
    """Print the table; write ``compile.json`` with every round and ``compile.md`` to a folder."""
    samples, threads, output = options.samples, options.threads, options.output
    print(table_head())
    timings: list[Timing] = []
    for name in options.models:
        actual = list(measure(registry.network(name), samples, threads, options.rounds))
        print("\n".join(rows(actual)), flush=True)
        timings += actual
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "compile.md").write_text("\n".join([table_head(), *rows(timings)]) + "\n")
        settings = {"samples": samples, "threads": threads, "environment": environment()}
        written = {**settings, "results": [asdict(timing) for timing in timings]}
        (output / "compile.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0
