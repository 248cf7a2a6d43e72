"""Time of the first call at a new shape, with and without cached kernels, and memory.

A network with free dimensions is saved once, then loaded by two processes, one after the other.
They share a kernel cache, which is empty for the first and complete for the second.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.networks.network import Network
from benchmarks.support.arguments import add_samples, positive
from benchmarks.support.processes import ROOT, environment_with, module_command
from benchmarks.support.runtime import PRECISIONS

WIDTHS = (328, 336, 400, 416, 480, 560, 640, 800)
"""Widths of text lines; the network is calibrated and compiled for 320 first."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, metavar="PRECISION"
    )
    command.add_argument("--threads", type=positive, default=1)
    add_samples(command)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table for text recognition."""
    print(
        "| precision | kernels | new shape s | most s | CPU s | again ms | peak MB | per shape MB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    network = registry.network("ppocr_rec")
    for precision in options.precisions:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{precision}.qgm"
            saved_model(network, precision, options.samples).save(path)
            for kernels in ("compiled", "cached"):
                cells = " | ".join(measured(path, Path(folder) / "cache", options.threads))
                print(f"| {precision} | {kernels} | {cells} |", flush=True)
    return 0


def saved_model(network: Network, precision: str, samples: int) -> Any:
    """The network with free dimensions, compiled for the benchmark's shape.

    Ranges come from a profile, because accuracy recovery does not matter here.
    """
    feeds = network.feeds(samples)
    if precision == "int8":
        profile = qg.profile(network.path(), feeds, progress=False)
        return qg.quantize_and_compile(network.path(), profile, verify=False)
    compiled = qg.compile(network.path())
    compiled.run(None, feeds[0])
    return compiled


def measured(path: Path, cache: Path, threads: int) -> list[str]:
    """Cells of one process, without the first new shape, which also opens the model."""
    command = module_command("latency.shapes", path, threads)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment_with(cache),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout)
    first, again = (found[key][1:] for key in ("first", "again"))
    grown = (found["peaks"][-1] - found["peaks"][1]) / (len(found["peaks"]) - 2)
    return [
        f"{median(first):.2f}",
        f"{max(first):.2f}",
        f"{median(found['cpu'][1:]):.2f}",
        f"{1000 * median(again):.1f}",
        f"{found['peaks'][-1] / 1e6:.0f}",
        f"{grown / 1e6:.1f}",
    ]


def worker(path: str, threads: int) -> dict[str, list[float]]:
    """Seconds of the first and second call at each width, and the peak memory after them."""
    found: dict[str, list[float]] = {"first": [], "cpu": [], "again": [], "peaks": []}
    compiled = qg.load(path, num_threads=threads)
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        feeds = {"x": rng.uniform(-1, 1, (1, 3, 48, width)).astype(np.float32)}
        cpu = time.process_time()
        for key in ("first", "again"):
            start = time.perf_counter()
            compiled.run(None, feeds)
            found[key].append(time.perf_counter() - start)
        found["cpu"].append(time.process_time() - cpu)
        found["peaks"].append(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return found


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1], int(sys.argv[2]))))
