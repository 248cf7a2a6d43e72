"""Error of each quantizer's int8 outputs against float, and the cost of its calibration."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import quantizers
from benchmarks.accuracy.evaluation import accuracy, agreement, evaluation, first_outputs, sqnr
from benchmarks.accuracy.quantize_process import MISSING
from benchmarks.accuracy.quantizers import Quantizer
from benchmarks.networks import registry
from benchmarks.networks.network import Network
from benchmarks.support import peer_runtimes
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.processes import ROOT, last_line, module_command

PACKAGES = ("quantglow", "onnxruntime", "openvino", "nncf", "numpy")
MEGA = 1e6
SAMPLES = 40
DEFAULT_QUANTIZERS = ("quantglow*", "onnxruntime*", "nncf*")
HEADER = (
    "network",
    "quantizer",
    "SQNR dB",
    "same answer as float",
    "accuracy",
    "calibration s",
    "peak MB",
    "of it for calibration MB",
)


@dataclass(frozen=True)
class Result:
    """One quantizer on one network, or the ``error`` that left it without figures.

    ``start_nbytes`` is the process's memory before quantization, ``peak_nbytes`` its peak.
    """

    network: str
    quantizer: str
    sqnr_db: float | None = None
    agreement: float | None = None
    accuracy: float | None = None
    seconds: float | None = None
    start_nbytes: int | None = None
    peak_nbytes: int | None = None
    error: str | None = None
    installed: bool = True


@dataclass(frozen=True)
class Settings:
    """Settings of all quantizers.

    ``memory_nbytes`` limits each process (0: no limit); quantglow's models go to folder ``save``.
    """

    samples: int
    threads: int
    memory_nbytes: int = 0
    save: str = ""


def measure(
    network: Network,
    quantizer: Quantizer,
    settings: Settings,
    reference: NDArray[Any],
    labels: NDArray[Any] | None,
) -> Result:
    """Run one quantizer in its process, and compare its outputs with ``reference``."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "outputs.npy"
        saved = [settings.save] if settings.save else []
        command = module_command(
            "accuracy.quantize_process",
            quantizer.name,
            network.name,
            settings.samples,
            settings.threads,
            target,
            settings.memory_nbytes,
            *saved,
        )
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            installed = done.returncode != MISSING
            error = last_line(done.stderr, done.returncode)
            return Result(network.name, quantizer.name, error=error, installed=installed)
        outputs = np.load(target, allow_pickle=False)
    return Result(
        network.name,
        quantizer.name,
        sqnr(reference, outputs, network.signal),
        agreement(reference, outputs, network.answers),
        accuracy(outputs, labels, network.answers),
        **json.loads(done.stdout),
    )


def compare(name: str, chosen: Sequence[Quantizer], settings: Settings) -> list[Result]:
    """Results of float and of every quantizer; each row is printed as soon as it is known."""
    network = registry.network(name)
    images, labels = evaluation(network)
    session = peer_runtimes.onnxruntime_float(network, settings.threads, 1, 0)
    reference = first_outputs(session, network, images)
    results = [Result(name, "float", accuracy=accuracy(reference, labels, network.answers))]
    print(markdown_row(results[0]), flush=True)
    for quantizer in chosen:
        results.append(measure(network, quantizer, settings, reference, labels))
        print(markdown_row(results[-1]), flush=True)
    return results


def markdown_row(result: Result) -> str:
    """One row of the table, with figures or with the error in their place."""
    if result.error:
        cells = [result.network, result.quantizer, result.error.replace("|", "\\|"), *[""] * 5]
        return f"| {' | '.join(cells)} |"
    memory, growth = result.peak_nbytes, None
    if memory is not None and result.start_nbytes is not None:
        growth = memory - result.start_nbytes
    cells = [
        result.network,
        result.quantizer,
        shown(result.sqnr_db, "{:.2f}"),
        shown(result.agreement, "{:.2%}"),
        shown(result.accuracy, "{:.2%}"),
        shown(result.seconds, "{:.1f}"),
        *(shown(None if n is None else n / MEGA, "{:.0f}") for n in (memory, growth)),
    ]
    return f"| {' | '.join(cells)} |"


def shown(value: float | None, pattern: str) -> str:
    return "" if value is None else pattern.format(value)


def table_head() -> str:
    return f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}"


def margins(results: Sequence[Result]) -> list[str]:
    """SQNR of quantglow less the best peer's, a line for each network."""
    lines = []
    for name in dict.fromkeys(r.network for r in results):
        known = {
            r.quantizer: r.sqnr_db
            for r in results
            if r.network == name and r.sqnr_db is not None and r.quantizer != "float"
        }
        rivals = {n: db for n, db in known.items() if quantizers.QUANTIZERS[n].peer}
        if "quantglow" in known and rivals:
            best = max(rivals, key=rivals.__getitem__)
            margin = known["quantglow"] - rivals[best]
            lines.append(f"- {name}: {margin:+.2f} dB against {best} ({rivals[best]:.2f} dB)")
    return lines


def document(results: Sequence[Result], settings: Settings) -> str:
    """The whole comparison as Markdown."""
    return "\n".join(
        [
            "# Accuracy",
            "",
            f"`python -m benchmarks accuracy --samples {settings.samples}`: the same "
            f"{settings.samples} calibration samples for all, float is onnxruntime's, "
            f"{settings.threads} threads, {platform.machine()}.",
            "Versions: " + ", ".join(f"{n} {v}" for n, v in versions().items()) + ".",
            "",
            table_head(),
            *map(markdown_row, results),
            "",
            "SQNR of quantglow beyond the best other quantizer:",
            "",
            *margins(results),
            "",
        ]
    )


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    actual = {}
    for name in PACKAGES:
        try:
            actual[name] = version(name)
        except PackageNotFoundError:
            continue
    return actual


def quantizer_pattern(text: str) -> str:
    """The name of a quantizer, or a shell pattern that fits some."""
    try:
        quantizers.chosen([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command, SAMPLES)
    command.add_argument(
        "--quantizers",
        nargs="+",
        type=quantizer_pattern,
        default=DEFAULT_QUANTIZERS,
        metavar="NAME",
        help=f"names, or patterns such as 'nncf*': {', '.join(quantizers.QUANTIZERS)}",
    )
    command.add_argument("--threads", type=positive, default=2)
    command.add_argument(
        "--memory-gb", type=float, default=0, help="memory limit of each process (default: none)"
    )
    command.add_argument("--output", type=Path, help="folder for accuracy.json and accuracy.md")
    command.add_argument("--save", type=Path, help="folder for quantglow's models: see ratios")


def run(options: argparse.Namespace) -> int:
    """Print the table and write it; 1 if a quantizer that is installed failed."""
    nbytes, folder = int(options.memory_gb * 1e9), ""
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        folder = str(options.save.resolve())
    settings = Settings(options.samples, options.threads, nbytes, folder)
    chosen = quantizers.chosen(options.quantizers)
    output = options.output
    print(table_head())
    results = [r for name in options.models for r in compare(name, chosen, settings)]
    print("\n" + "\n".join(margins(results)))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "accuracy.md").write_text(document(results, settings), encoding="utf-8")
        plain = {"versions": versions(), **asdict(settings), "results": [*map(asdict, results)]}
        (output / "accuracy.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
    return int(any(r.error and r.installed for r in results))
