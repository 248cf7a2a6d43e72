"""Time of calibration and quantization, in turns with other quantizers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.accuracy import quantizers
from benchmarks.accuracy.accuracy import MEGA, SAMPLES, Result, Settings, measure, shown
from benchmarks.accuracy.evaluation import evaluation, first_outputs
from benchmarks.networks import registry
from benchmarks.support import peer_runtimes
from benchmarks.support.arguments import add_models, add_samples, positive

QUANTIZERS = ("quantglow", "quantglow fast", "nncf", "onnxruntime minmax")
MEASURE = "nncf"
"""The quantizer over whose time the others are shown."""
HEADER = ("network", "quantizer", "seconds", f"over {MEASURE}", "SQNR dB", "MB for calibration")


@dataclass(frozen=True)
class Row:
    """The rounds of one quantizer on one network."""

    results: tuple[Result, ...]

    @property
    def seconds(self) -> float | None:
        """The median of the rounds; None if one failed."""
        actual = [result.seconds for result in self.results if result.seconds is not None]
        return median(actual) if len(actual) == len(self.results) else None

    def cells(self, peer: float | None) -> tuple[str, ...]:
        """The cells of the table, or the error in their place."""
        first = self.results[0]
        if error := next((r.error for r in self.results if r.error), None):
            return first.network, first.quantizer, error.replace("|", "\\|"), "", "", ""
        over = None if peer is None or self.seconds is None else self.seconds / peer
        nbytes = (first.peak_nbytes or 0) - (first.start_nbytes or 0)
        return (
            first.network,
            first.quantizer,
            shown(self.seconds, "{:.2f}"),
            shown(over, "{:.2f}"),
            shown(first.sqnr_db, "{:.2f}"),
            f"{nbytes / MEGA:.0f}",
        )


def table(rows: Sequence[Row]) -> str:
    """Rows of one network as Markdown."""
    peer = next((row.seconds for row in rows if row.results[0].quantizer == MEASURE), None)
    return "\n".join(f"| {' | '.join(row.cells(peer))} |" for row in rows)


def rows_of(name: str, chosen: Sequence[str], settings: Settings, rounds: int) -> list[Row]:
    """Every quantizer once in each round, so that drift of the machine affects all."""
    network = registry.network(name)
    images, labels = evaluation(network)
    session = peer_runtimes.onnxruntime_float(network, settings.threads, 1, 0)
    reference = first_outputs(session, network, images)
    actual: dict[str, list[Result]] = {quantizer: [] for quantizer in chosen}
    for _ in range(rounds):
        for quantizer, results in actual.items():
            one = quantizers.QUANTIZERS[quantizer]
            results.append(measure(network, one, settings, reference, labels))
    return [Row(tuple(results)) for results in actual.values()]


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command, SAMPLES)
    command.add_argument(
        "--quantizers",
        nargs="+",
        choices=sorted(quantizers.QUANTIZERS),
        default=QUANTIZERS,
        metavar="NAME",
        help=f"default: {', '.join(QUANTIZERS)}",
    )
    command.add_argument("--threads", type=positive, default=2)
    command.add_argument("--rounds", type=positive, default=3)


def run(options: argparse.Namespace) -> int:
    """Print the table, network by network; 1 if a quantizer that is installed failed."""
    settings = Settings(options.samples, options.threads)
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    rows: list[Row] = []
    for name in options.models:
        rows += (actual := rows_of(name, options.quantizers, settings, options.rounds))
        print(table(actual), flush=True)
    return int(any(r.error and r.installed for row in rows for r in row.results))
