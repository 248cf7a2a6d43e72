"""Many shapes in a row, each seen for the first time: total time, first calls, memory.

Networks with free dimensions, in float and int8, beside onnxruntime and OpenVINO.  Each runtime
loads a model in a process of its own, with an empty cache, and runs every shape twice; the second
call shows what the first one cost beside the computation.  ``--kept``: the cache of an equal
process before; ``--code``: quantglow's file brings machine code; ``--while-compiling onnxruntime``:
it answers calls of quantglow's model until programs are ready.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.latency.shapes_process import Timing
from benchmarks.networks.free_networks import NETWORKS, FreeNetwork
from benchmarks.support.arguments import add_samples, positive
from benchmarks.support.environment import processor
from benchmarks.support.free_models import model_file
from benchmarks.support.processes import ROOT, environment_with, last_line, module_command
from benchmarks.support.runtime import PRECISIONS

OURS = "quantglow"
PEERS = ("onnxruntime", "openvino")
ANSWERING = ("wait", "onnxruntime")
COMPILING = 2
"""Number of shapes whose first calls may compile programs."""
COLUMNS = (
    "network",
    "runtime",
    "load s",
    "all shapes s",
    "first two s",
    "new shape ms",
    "worst ms",
    "again ms",
    "grown MB",
)


@dataclass(frozen=True)
class Row:
    """One runtime on one network: its timing, or why there is none."""

    network: str
    runtime: str
    timing: Timing | None = None
    error: str = ""
    is_missing: bool = False

    def line(self) -> str:
        """A line of the table."""
        actual = [self.error] if self.timing is None else cells(self.timing)
        return f"| {self.network} | {self.runtime} | {' | '.join(actual)} |"


def cells(timing: Timing) -> list[str]:
    """The figures of a row, those of new shapes without the first ones."""
    first, again = timing.first, timing.again
    extra = [a - b for a, b in zip(first, again, strict=True)][COMPILING:]
    return [
        f"{timing.load:.2f}",
        f"{sum(first):.2f}",
        f"{sum(first[:COMPILING]):.2f}",
        f"{1000 * median(extra):.2f}",
        f"{1000 * max(extra):.1f}",
        f"{1000 * median(again[COMPILING:]):.1f}",
        f"{(timing.peaks[-1] - timing.peaks[COMPILING]) / 1e6:.0f}",
    ]


def verdict(network: str, rows: Sequence[Row]) -> str:
    """The total time of the fastest peer over ours in int8: above 1 quantglow is faster."""
    actual = {row.runtime: row.timing for row in rows if row.network == network and row.timing}
    ours = actual.get(f"{OURS} int8")
    peers = {name: timing for name, timing in actual.items() if not name.startswith(OURS)}
    if ours is None or not peers:
        return f"- {network}: nothing to compare"
    parts = [compared(ours, peers)]
    int8 = {name: timing for name, timing in peers.items() if name.endswith("int8")}
    if int8 and parts != [in_int8 := compared(ours, int8)]:
        parts.append(in_int8)
    return f"- {network}: {'; '.join(parts)}"


def compared(ours: Timing, peers: Mapping[str, Timing]) -> str:
    """The ratio to the fastest peer, without and with the time of loading."""
    name = min(peers, key=lambda peer: sum(peers[peer].first))
    theirs, local = sum(peers[name].first), sum(ours.first)
    loaded = (theirs + peers[name].load) / (local + ours.load)
    return f"{theirs / local:.2f} of {name} ({loaded:.2f} with loading)"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    command.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    command.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    command.add_argument("--shapes", type=at_least_three, default=300, help="different shapes")
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument(
        "--code", action="store_true", help="machine code in the files of quantglow"
    )
    command.add_argument(
        "--kept", action="store_true", help="programs on disk: an equal process ran before"
    )
    command.add_argument("--while-compiling", choices=ANSWERING, default=ANSWERING[0])
    add_samples(command)


def at_least_three(text: str) -> int:
    """A number of shapes of which some compile nothing."""
    if (number := positive(text)) <= COMPILING:
        raise argparse.ArgumentTypeError(f"{text} shapes are too few: {COMPILING + 1} are needed")
    return number


def run(options: argparse.Namespace) -> int:
    """Print the verdicts and a Markdown table; 1 if a runtime failed.  Rows go to stderr, too."""
    rows = []
    for row in measured_rows(options):
        print(row.line(), file=sys.stderr, flush=True)
        rows.append(row)
    print(f"{processor()}, {options.threads} thread(s); all shapes, a peer over {OURS} int8:\n")
    print("\n".join(verdict(name, rows) for name in options.models))
    print(f"\n| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    print("\n".join(row.line() for row in rows))
    return int(any(row.timing is None and not row.is_missing for row in rows))


def measured_rows(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of all networks, runtimes and precisions."""
    for name in options.models:
        for precision in options.precisions:
            for runtime in (OURS, *options.peers):
                yield measured(NETWORKS[name], f"{runtime} {precision}", options)


def measured(network: FreeNetwork, runtime: str, options: argparse.Namespace) -> Row:
    """The row of one process, with the error if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = model_file(runtime, network, options.samples, Path(folder))
        except ModuleNotFoundError as error:
            return Row(network.name, runtime, error=str(error), is_missing=True)
        except Exception as error:  # noqa: BLE001  quantizers of others raise anything
            return Row(network.name, runtime, error=last_line(str(error), 1))
        numbers = (options.threads, options.shapes)
        if options.code and runtime.startswith(OURS):
            include = module_command("latency.shapes_code", network.name, path, *numbers)
            subprocess.run(include, cwd=ROOT, check=True)
        for _ in range(1 + options.kept):
            inputs = (runtime, network.name, path, *numbers, options.while_compiling)
            done = subprocess.run(
                module_command("latency.shapes_process", *inputs),
                cwd=ROOT,
                env=environment_with(Path(folder) / "cache"),
                text=True,
                capture_output=True,
            )
    if done.returncode:
        return Row(network.name, runtime, error=last_line(done.stderr, done.returncode))
    return Row(network.name, runtime, Timing(**json.loads(done.stdout)))
