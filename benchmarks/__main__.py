"""``python -m benchmarks latency | accuracy``; README.md shows the uses."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import accuracy, latency, models


def parser() -> argparse.ArgumentParser:
    """Both commands and their options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name, module in (("latency", latency), ("accuracy", accuracy)):
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--models", nargs="+", default=models.TABLE, metavar="NAME")
        command.add_argument(
            "--peers", nargs="*", default=["onnxruntime"], choices=latency.PEERS, metavar="PEER"
        )
        command.add_argument("--samples", type=int, default=8, help="calibration samples")
    add_latency_options(commands.choices["latency"])
    return top


def add_latency_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    command.add_argument("--batch", nargs="+", type=int, default=[1])
    command.add_argument("--rounds", type=int, default=7)
    command.add_argument("--output", type=Path, help="folder for latency.json and latency.md")


def main() -> int:
    """Exit code: 1 if a runtime failed on a network, 2 for wrong arguments."""
    top = parser()
    options = top.parse_args()
    try:
        for name in options.models:
            models.network(name)
    except ValueError as error:
        top.error(str(error))
    if options.command == "accuracy":
        runtimes = (latency.OURS, *options.peers)
        return accuracy.run(options.models, runtimes, options.samples, threads=2)
    return latency.run(
        options.models,
        options.threads,
        options.batch,
        options.peers,
        options.rounds,
        options.samples,
        options.output,
    )


if __name__ == "__main__":
    sys.exit(main())
