"""Latency of all runtimes, interleaved, so that drift of the machine affects them equally.

Each runtime has its own process.  A round times each of them once, in rotated order.  A figure is
the median over the rounds of each round's median, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.latency.peak import native_peak
from benchmarks.latency.worker import Worker, WorkerFailedError, started
from benchmarks.networks import registry
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.environment import environment, processor
from benchmarks.support.runtime import PRECISIONS

OURS = "quantglow"
PEERS = ("onnxruntime", "openvino")
TURN_SECONDS, SETTLE_SECONDS = 0.25, 0.02
MIN_RUNS, MAX_RUNS, WARMUP_RUNS = 5, 1000, 3


@dataclass(frozen=True)
class Case:
    """One row of the table: a network and how it runs."""

    network: str
    threads: int
    batch: int
    precision: str


@dataclass
class Measurement:
    """One runtime on one case: the median of every round, or the error."""

    case: Case
    runtime: str
    prepare_seconds: float = 0.0
    compile_seconds: float = 0.0
    round_ms: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def median_ms(self) -> float:
        return statistics.median(self.round_ms)


def turn(worker: Worker, runs: int) -> float:
    """Median milliseconds of ``runs`` runs, after the threads of other processes fell asleep."""
    time.sleep(SETTLE_SECONDS)
    seconds: list[float] = worker.ask("time", warmup=WARMUP_RUNS, runs=runs)["seconds"]
    return 1e3 * statistics.median(seconds)


def measure(
    network: str, threads: int, batch: int, runtimes: Sequence[str], rounds: int, samples: int
) -> list[Measurement]:
    """Measurements of all ``runtimes`` in both precisions; failures are kept, not raised."""
    measurements, workers = [], []
    with ExitStack() as stack:
        for runtime in runtimes:
            for precision in PRECISIONS:
                measurement = Measurement(Case(network, threads, batch, precision), runtime)
                measurements.append(measurement)
                prepared = started(
                    runtime=f"{runtime} {precision}",
                    samples=samples,
                    network=network,
                    threads=threads,
                    batch=batch,
                )
                try:
                    worker = stack.enter_context(prepared)
                    measurement.prepare_seconds = worker.prepare_seconds
                    measurement.compile_seconds = worker.compile_seconds
                    workers.append((worker, measurement))
                except WorkerFailedError as failure:
                    measurement.error = str(failure)
        interleave(workers, rounds)
    return measurements


def interleave(workers: list[tuple[Worker, Measurement]], rounds: int) -> None:
    """Give every worker ``rounds`` turns; each round begins with another worker."""
    runs = []
    for worker, _ in workers:
        estimate = turn(worker, MIN_RUNS) / 1e3
        runs.append(min(MAX_RUNS, max(MIN_RUNS, int(TURN_SECONDS / estimate))))
    for index in range(rounds):
        for place in range(len(workers)):
            at = (index + place) % len(workers)
            worker, measurement = workers[at]
            measurement.round_ms.append(turn(worker, runs[at]))


def median_ratio(ours: Measurement, other: Measurement) -> float:
    """Median of ours / other over the rounds; below 1 quantglow is faster."""
    pairs = zip(ours.round_ms, other.round_ms, strict=True)
    return statistics.median(a / b for a, b in pairs)


def milliseconds(measurement: Measurement) -> str:
    return "failed" if measurement.error else f"{measurement.median_ms:.3f}"


def share_of_limit(case: Case, median_ms: float, macs: int) -> float:
    """Time that the products take at this processor's peak, over the time taken."""
    rate = native_peak(case.threads).macs(is_integer=case.precision == "int8")
    return macs / rate / (median_ms / 1e3)


def row(case: Case, actual: dict[str, Measurement], macs: int, peers: Sequence[str]) -> str:
    """One Markdown row; GMAC/s, share of the peak and seconds of preparation are quantglow's."""
    ours = actual[OURS]
    last = ["", "", "", ""]
    if not ours.error:
        share = share_of_limit(case, ours.median_ms, macs)
        rate = f"{macs / ours.median_ms / 1e6:.0f}"
        before = ours.prepare_seconds - ours.compile_seconds
        last = [rate, f"{100 * share:.0f} %", f"{before:.1f}", f"{ours.compile_seconds:.1f}"]
    cells = [case.network, str(case.threads), str(case.batch), case.precision, milliseconds(ours)]
    for peer in peers:
        other = actual[peer]
        known = not (ours.error or other.error)
        cells += [milliseconds(other), f"{median_ratio(ours, other):.2f}" if known else ""]
    return f"| {' | '.join([*cells, *last])} |"


def table(measurements: list[Measurement], macs: dict[tuple[str, int], int]) -> str:
    """Markdown: one row for each case, one pair of columns for each peer."""
    cases: dict[Case, dict[str, Measurement]] = {}
    for measurement in measurements:
        cases.setdefault(measurement.case, {})[measurement.runtime] = measurement
    peers = [name for name in PEERS if any(name in value for value in cases.values())]
    header = ["network", "threads", "batch", "precision", f"{OURS} ms"]
    for peer in peers:
        header += [f"{peer} ms", f"{OURS} / {peer}"]
    header += ["GMAC/s", "of the limit", "quantize s", "compile s"]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    for case, value in cases.items():
        lines.append(row(case, value, macs[case.network, case.batch], peers))
    return "\n".join(lines)


def failures(measurements: list[Measurement]) -> list[str]:
    """One line for each runtime that could not run a case."""
    return [
        f"{m.runtime} {m.case.precision} failed on {m.case.network}: {m.error}"
        for m in measurements
        if m.error
    ]


def write_results(
    folder: Path, measurements: list[Measurement], macs: dict[tuple[str, int], int]
) -> None:
    """``latency.json`` with every round and ``latency.md`` with the table."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [asdict(m) | {"macs": macs[m.case.network, m.case.batch]} for m in measurements]
    peaks = [asdict(native_peak(count)) for count in sorted({m.case.threads for m in measurements})]
    written = {"environment": environment(), "peaks": peaks, "results": results}
    text = json.dumps(written, indent=1)
    (folder / "latency.json").write_text(text + "\n")
    (folder / "latency.md").write_text(table(measurements, macs) + "\n")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument(
        "--peers", nargs="*", default=["onnxruntime"], choices=PEERS, metavar="PEER"
    )
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    command.add_argument("--batch", nargs="+", type=positive, default=[1])
    command.add_argument("--rounds", type=positive, default=7)
    command.add_argument("--output", type=Path, help="folder for latency.json and latency.md")


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write it to a folder; 1 if anything failed."""
    measurements: list[Measurement] = []
    macs: dict[tuple[str, int], int] = {}
    for count in options.threads:
        native_peak(count)  # measured before other processes run
    runtimes = (OURS, *options.peers)
    for name in options.models:
        for batch in options.batch:
            macs[name, batch] = registry.network(name).macs(batch)
            for count in options.threads:
                print(f"{name}, batch {batch}, {count} thread(s) ...", flush=True)
                measurements += measure(
                    name, count, batch, runtimes, options.rounds, options.samples
                )
    print(f"\n{processor()}; milliseconds; ratio below 1: {OURS} is faster\n")
    print(table(measurements, macs))
    if options.output is not None:
        write_results(options.output, measurements, macs)
    failed = failures(measurements)
    print("\n".join(["", *failed]) if failed else "")
    return 1 if failed else 0
