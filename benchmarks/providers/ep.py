"""quantglow's provider of onnxruntime beside the CPU's and OpenVINO's, and beside ``qg.compile``.

Models are networks in float and as QDQ (``quantize_static``), networks out of wheels, and decoders
that write a text with a cache.  Each runtime has a process of its own; all take turns, in rotated
order.  The verdict on the goals comes before the tables.  A session is made in one process with an
empty cache (``cold``) and in others with a full one.

OpenVINO's provider is onnxruntime-ep-openvino.  It serves Intel's processors; on others give
``--openvino-python``, the Python of an environment with onnxruntime-openvino.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.evaluation import sqnr
from benchmarks.latency.latency import Case, Measurement, failures, interleave
from benchmarks.latency.worker import WorkerFailedError, started
from benchmarks.providers.cases import ProviderCase, all_cases
from benchmarks.providers.results import CaseResult, session_table, time_table, verdict
from benchmarks.support.arguments import positive
from benchmarks.support.environment import environment, processor
from benchmarks.support.processes import ROOT, environment_with, module_command
from tests.support.plug_in import build

RUNTIMES = ("cpu", "quantglow", "compile", "cpu exact", "openvino")
PEER = "onnxruntime_ep_openvino"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--only", nargs="*", default=[""], help="parts of the models' names")
    command.add_argument("--precisions", nargs="*", help="float, QDQ, int8, int4")
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    command.add_argument("--rounds", type=positive, default=7)
    command.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: time of all threads of a process, for one thread on a machine with other work",
    )
    command.add_argument(
        "--openvino-python", metavar="PYTHON", help="of an environment with onnxruntime-openvino"
    )
    command.add_argument("--output", type=Path, help="folder for ep.json and ep.md")


def run(options: argparse.Namespace) -> int:
    """Measure, print verdict and tables; 1 if anything failed."""
    results: list[CaseResult] = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for case in all_cases():
            if not any(part in case.name for part in options.only):
                continue
            if options.precisions and case.precision not in options.precisions:
                continue
            for threads in options.threads:
                print(f"{case.name} {case.precision}, {threads} thread(s) ...", flush=True)
                results.append(measure(case, threads, library, options))
        overhead = overhead_of(library)
    text = report(results, overhead)
    print(f"\n{text}")
    if options.output is not None:
        write_results(options.output, results, overhead, text)
    failed = failures([m for each in results for m in each.measured.values()])
    print("\n".join(["", *failed]) if failed else "")
    return 1 if failed else 0


def measure(
    case: ProviderCase, threads: int, library: Path, options: argparse.Namespace
) -> CaseResult:
    """One model on some threads in all runtimes."""
    result = CaseResult(case.name, case.precision, threads)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        feeds = Path(folder) / "feeds.npz"
        np.savez(feeds, **case.feeds())  # type: ignore[arg-type]  # a feed is not called "file"
        prepare: dict[str, Any] = {
            "model": str(case.file()),
            "threads": threads,
            "feeds": str(feeds),
            "tokens": case.tokens,
            "library": str(library),
            "clock": options.clock,
            "environment": environment_with(Path(folder) / "cache"),
        }
        workers = []
        try:
            with started(command_of("quantglow", options), runtime="quantglow", **prepare) as cold:
                result.cold = cold.ready
        except WorkerFailedError:
            pass  # the next process says so
        for runtime in RUNTIMES:
            if runtime == "openvino" and not has_openvino(options):
                continue
            if runtime == "cpu exact" and case.precision != "QDQ":
                continue
            measurement = Measurement(Case(case.name, threads, 1, case.precision), runtime)
            result.measured[runtime] = measurement
            try:
                command = command_of(runtime, options)
                worker = stack.enter_context(started(command, runtime=runtime, **prepare))
                result.ready[runtime] = worker.ready
                workers.append((worker, measurement))
            except WorkerFailedError as failure:
                measurement.error = str(failure)
        interleave(workers, options.rounds)
        judge = "cpu exact" if "cpu exact" in result.measured else "cpu"
        if {judge, "quantglow"} <= result.ready.keys():
            result.decibels = lowest(*(outputs(feeds, name) for name in (judge, "quantglow")))
    return result


def has_openvino(options: argparse.Namespace) -> bool:
    return options.openvino_python is not None or find_spec(PEER) is not None


def command_of(runtime: str, options: argparse.Namespace) -> list[str]:
    """The command of a child."""
    command = module_command("providers.process")
    if runtime == "openvino" and options.openvino_python is not None:
        command[0] = options.openvino_python
    return command


def outputs(feeds: Path, runtime: str) -> list[np.ndarray]:
    """The outputs of a runtime's first call."""
    with np.load(feeds.with_name(f"{runtime}.npz"), allow_pickle=False) as archive:
        return [archive[name] for name in archive.files]


def lowest(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """The lowest signal-to-noise ratio of a float output, in dB."""
    pairs = zip(expected, actual, strict=True)
    return min(
        (
            sqnr(np.reshape(one, (1, -1)), np.reshape(other, (1, -1)))
            for one, other in pairs
            if one.dtype.kind == "f" and one.size
        ),
        default=float("nan"),
    )


def overhead_of(library: Path) -> float:
    """Microseconds of a call over the machine code."""
    command = [sys.executable, "-m", "benchmarks.providers.overhead", str(library)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True)
    return float(json.loads(done.stdout)["overhead"])


def report(results: Sequence[CaseResult], overhead: float) -> str:
    """The verdict, then the tables."""
    machine = f"{processor()}, {os.cpu_count()} cores"
    return "\n".join(
        [
            f"{machine}; ratios of times, below 1 quantglow is faster\n",
            *(f"- {line}" for line in verdict(results, overhead)),
            "",
            time_table(results),
            "",
            session_table(results),
        ]
    )


def write_results(folder: Path, results: Sequence[CaseResult], overhead: float, text: str) -> None:
    """``ep.json`` with every round and ``ep.md`` with the text."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "environment": environment(),
        "overhead": overhead,
        "results": [asdict(each) for each in results],
    }
    (folder / "ep.json").write_text(json.dumps(written, indent=1) + "\n")
    (folder / "ep.md").write_text(text + "\n")
