"""``python -m benchmarks COMMAND``: what quantglow costs and gives beside others; see README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import (
    accuracy,
    compile,
    conformance,
    contestants,
    latency,
    layers,
    memory,
    models,
    operators,
    peak,
    shapes,
)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for module in (
        latency,
        accuracy,
        compile,
        memory,
        layers,
        peak,
        conformance,
        operators,
        shapes,
    ):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        if module not in (peak, conformance, operators):
            command.add_argument("--samples", type=int, default=8, help="calibration samples")
    for name in ("latency", "accuracy", "compile", "memory"):
        commands.choices[name].add_argument(
            "--models", nargs="+", default=models.TABLE, metavar="NAME"
        )
    commands.choices["latency"].add_argument(
        "--peers", nargs="*", default=["onnxruntime"], choices=latency.PEERS, metavar="PEER"
    )
    for name in ("latency", "peak"):
        commands.choices[name].add_argument("--threads", nargs="+", type=int, default=[1, 2])
    for name in ("memory", "layers", "shapes"):
        commands.choices[name].add_argument("--threads", type=int, default=1)
    for name in ("memory", "layers"):
        commands.choices[name].add_argument("--batch", type=int, default=1)
    commands.choices["conformance"].add_argument(
        "--verbose", action="store_true", help="also how each case went"
    )
    commands.choices["shapes"].add_argument(
        "--precisions", nargs="+", default=latency.PRECISIONS, choices=latency.PRECISIONS
    )
    add_latency_options(commands.choices["latency"])
    add_accuracy_options(commands.choices["accuracy"])
    add_compile_options(commands.choices["compile"])
    add_layers_options(commands.choices["layers"])
    return top


def add_latency_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--batch", nargs="+", type=int, default=[1])
    command.add_argument("--rounds", type=int, default=7)
    command.add_argument("--output", type=Path, help="folder for latency.json and latency.md")


def add_accuracy_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(samples=accuracy.SAMPLES)
    command.add_argument(
        "--quantizers",
        nargs="+",
        default=accuracy.QUANTIZERS,
        metavar="NAME",
        help=f"or the first word of several: {', '.join(contestants.CONTESTANTS)}",
    )
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--memory-gb", type=float, default=0, help="bound on each process")
    command.add_argument("--output", type=Path, help="folder for accuracy.json and accuracy.md")


def add_compile_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(samples=compile.SAMPLES)
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--rounds", type=int, default=compile.ROUNDS)
    command.add_argument("--output", type=Path, help="folder for compile.json and compile.md")


def add_layers_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL")
    command.add_argument("--precision", choices=latency.PRECISIONS, default="int8")
    command.add_argument("--repeats", type=int, default=30)


def check_models(top: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with code 2 for a network or a quantizer that does not exist."""
    wanted = [options.model] if options.command == "layers" else getattr(options, "models", [])
    try:
        for name in wanted:
            models.network(name)
        contestants.chosen(getattr(options, "quantizers", []))
    except ValueError as error:
        top.error(str(error))


def main() -> int:
    """Exit code: 1 if a runtime failed on a network, 2 for wrong arguments."""
    top = parser()
    given = top.parse_args()
    check_models(top, given)
    if given.command == "peak":
        return peak.run(given.threads)
    if given.command == "conformance":
        return conformance.run(given.verbose)
    if given.command == "operators":
        return operators.run()
    if given.command == "layers":
        return layers.run(
            given.model, given.precision, given.threads, given.batch, given.samples, given.repeats
        )
    if given.command == "shapes":
        return shapes.run(given.precisions, given.threads, given.samples)
    if given.command == "memory":
        return memory.run(given.models, given.threads, given.batch, given.samples)
    if given.command == "accuracy":
        settings = accuracy.Settings(given.samples, given.threads, int(given.memory_gb * 1e9))
        return accuracy.run(given.models, given.quantizers, settings, given.output)
    if given.command == "compile":
        return compile.run(given.models, given.samples, given.threads, given.rounds, given.output)
    return latency.run(
        given.models,
        given.threads,
        given.batch,
        given.peers,
        given.rounds,
        given.samples,
        given.output,
    )


if __name__ == "__main__":
    sys.exit(main())
