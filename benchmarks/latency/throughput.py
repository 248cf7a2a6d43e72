"""Inferences in a second under full load, and their latencies, beside onnxruntime and OpenVINO.

Each runtime has a process of its own for each round, in rotated order, and as many inferences
under way as keep all its streams busy.  quantglow: ``InferQueue``; onnxruntime: a session of one
thread, called by as many threads; OpenVINO: its throughput hint and ``AsyncInferQueue``.  Figures
are medians over the rounds; all run the int8 model of their own quantizer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.latency.throughput_process import OURS, PEERS
from benchmarks.networks import registry
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.environment import processor
from benchmarks.support.peer_runtimes import onnxruntime_int8_file, openvino_int8_file
from benchmarks.support.processes import ROOT, last_line, module_command
from benchmarks.support.quantglow_runtime import int8_model

COLUMNS = ("network", "runtime", "inferences/s", "p50 ms", "p99 ms", "p99 / p50")


@dataclass(frozen=True)
class Row:
    """One runtime on one network: figures of each round, or an error."""

    network: str
    runtime: str
    rounds: tuple[dict[str, float], ...] = ()
    error: str = ""

    def figure(self, name: str) -> float:
        """The median over the rounds."""
        return median(value[name] for value in self.rounds)

    def line(self) -> str:
        """A line of the table."""
        if self.error:
            return f"| {self.network} | {self.runtime} | {self.error} |"
        rate, p50, p99 = map(self.figure, ("rate", "p50", "p99"))
        cells = (f"{rate:.1f}", f"{1e3 * p50:.2f}", f"{1e3 * p99:.2f}", f"{p99 / p50:.2f}")
        return f"| {self.network} | {self.runtime} | {' | '.join(cells)} |"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    command.add_argument("--threads", type=positive, default=2, help="processors to use")
    command.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    command.add_argument("--rounds", type=positive, default=5)
    command.add_argument("--seconds", type=float, default=4.0, help="of each round")
    add_samples(command)


def run(options: argparse.Namespace) -> int:
    """Print the verdicts and a Markdown table; 1 if a runtime failed."""
    rows: list[Row] = []
    for name in options.models:
        for row in measured(name, options):
            print(row.line(), file=sys.stderr, flush=True)
            rows.append(row)
    print(
        f"{processor()}, {options.threads} thread(s); inferences in a second, ours over theirs:\n"
    )
    print("\n".join(verdict(name, rows) for name in options.models))
    print(f"\n| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    print("\n".join(row.line() for row in rows))
    return int(any(row.error for row in rows))


def verdict(network: str, rows: Sequence[Row]) -> str:
    """Our rate over that of the fastest peer."""
    actual = {row.runtime: row for row in rows if row.network == network and not row.error}
    ours = actual.pop(OURS, None)
    if ours is None or not actual:
        return f"- {network}: nothing to compare"
    best = max(actual.values(), key=lambda row: row.figure("rate"))
    return f"- {network}: {ours.figure('rate') / best.figure('rate'):.2f} of {best.runtime}"


def measured(network: str, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of a network, measured in turns."""
    with tempfile.TemporaryDirectory() as folder:
        files, errors = dict[str, Path](), dict[str, str]()
        for runtime in (OURS, *options.peers):
            try:
                files[runtime] = model_file(runtime, network, options.samples, Path(folder))
            except Exception as error:  # noqa: BLE001  quantizers of others raise anything
                errors[runtime] = last_line(str(error), 1)
        rounds: dict[str, list[dict[str, float]]] = {runtime: [] for runtime in files}
        for index in range(options.rounds):
            for place in range(len(files)):
                runtime = list(files)[(index + place) % len(files)]
                if runtime not in errors:
                    actual = one_round(runtime, network, files[runtime], options)
                    if isinstance(actual, str):
                        errors[runtime] = actual
                    else:
                        rounds[runtime].append(actual)
    for runtime in (OURS, *options.peers):
        yield Row(network, runtime, tuple(rounds.get(runtime, ())), errors.get(runtime, ""))


def model_file(runtime: str, network: str, samples: int, folder: Path) -> Path:
    """The int8 model of a runtime's own quantizer."""
    chosen = registry.network(network)
    if runtime == "onnxruntime":
        return onnxruntime_int8_file(chosen, 1, samples)
    if runtime == "openvino":
        return openvino_int8_file(chosen, 1, samples)
    path = folder / "int8.qgm"
    int8_model(chosen, 1, 1, samples).save(path)
    return path


def one_round(
    runtime: str, network: str, path: Path, options: argparse.Namespace
) -> dict[str, float] | str:
    """Figures of one process, or the last line of its error."""
    arguments: tuple[Any, ...] = (runtime, network, path, options.threads, options.seconds)
    command = module_command("latency.throughput_process", *arguments)
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        return last_line(done.stderr, done.returncode)
    data: dict[str, float] = json.loads(done.stdout)
    return data
