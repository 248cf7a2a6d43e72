"""Resident memory of a process that runs a saved network, quantglow beside onnxruntime."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.networks import registry
from benchmarks.networks.network import Network
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.peer_runtimes import onnxruntime_int8_file
from benchmarks.support.processes import ROOT, module_command
from benchmarks.support.quantglow_runtime import float_model, int8_model
from benchmarks.support.runtime import shaped

RUNS = 20
MEGA = 1e6


@dataclass(frozen=True)
class Footprint:
    """Resident bytes of one process: before its runtime is imported, ready to run, peak."""

    before: int
    ready: int
    peak: int

    def cells(self) -> list[str]:
        """Megabytes when ready, at the peak, and of runtime and model alone."""
        figures = (self.ready, self.peak, self.peak - self.before)
        return [f"{figure / MEGA:.1f}" for figure in figures]


def measure(runtime: str, model: Path, feeds: Path, threads: int) -> Footprint:
    """Footprint of the second of two processes; the first one fills the kernel cache.

    Raises ``CalledProcessError``.
    """
    command = module_command("latency.memory_process", runtime, model, feeds, threads, RUNS)
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    return Footprint(**json.loads(done.stdout))


def saved_models(
    network: Network, batch: int, samples: int, folder: Path
) -> Iterator[tuple[str, str, Path]]:
    """(precision, runtime, file) for each process."""
    for precision, maker in (("float", float_model), ("int8", int8_model)):
        path = folder / f"{precision}.qgm"
        maker(network, 1, batch, samples).save(path)
        yield precision, "quantglow", path
        if precision == "float":
            yield precision, "onnxruntime", shaped(network, batch)
        else:
            yield precision, "onnxruntime", onnxruntime_int8_file(network, batch, samples)


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument("--batch", type=positive, default=1)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    batch = options.batch
    print("| network | precision | runtime | ready MB | peak MB | runtime and model MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.models:
        network = registry.network(name)
        with tempfile.TemporaryDirectory() as folder:
            feeds = Path(folder) / "feeds.npz"
            (values,) = network.feeds(1, seed=1, batch=batch)
            np.savez(feeds, allow_pickle=False, **values)
            for precision, runtime, path in saved_models(
                network, batch, options.samples, Path(folder)
            ):
                cells = " | ".join(measure(runtime, path, feeds, options.threads).cells())
                print(f"| {name} | {precision} | {runtime} | {cells} |", flush=True)
    return 0
