"""Resident memory and start-up time of a process that runs a saved network, beside onnxruntime.

One row is quantglow with LLVM's linker in place of its own.
"""

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

STARTS = 5
"""Processes that are started once the first one has filled the kernel cache."""

MEGA = 1e6


@dataclass(frozen=True)
class Footprint:
    """Resident bytes of one process: before its runtime is imported, ready to run, peak; and the
    seconds from before to ready."""

    before: int
    ready: int
    peak: int
    seconds: float

    def cells(self) -> list[str]:
        """Megabytes when ready, at the peak, and of runtime and model alone; milliseconds."""
        figures = (self.ready, self.peak, self.peak - self.before)
        return [*(f"{figure / MEGA:.1f}" for figure in figures), f"{1e3 * self.seconds:.0f}"]


def measure(runtime: str, model: Path, feeds: Path, threads: int) -> Footprint:
    """Footprint of a process that finds its kernels in the cache: the fastest of several starts.

    Raises ``CalledProcessError``.
    """
    command = module_command("latency.memory_process", runtime, model, feeds, threads, RUNS)
    collected = []
    for _ in range(1 + STARTS):
        done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
        collected.append(Footprint(**json.loads(done.stdout)))
    return min(collected[1:], key=lambda footprint: footprint.seconds)


def saved_models(
    network: Network, batch: int, samples: int, folder: Path
) -> Iterator[tuple[str, str, Path]]:
    """(precision, runtime, file) for each process."""
    for precision, maker in (("float", float_model), ("int8", int8_model)):
        path = folder / f"{precision}.qgm"
        maker(network, 1, batch, samples).save(path)
        yield precision, "quantglow", path
        yield precision, "quantglow, LLVM's linker", path
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
    print("| network | precision | runtime | ready MB | peak MB | runtime and model MB | ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
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
