"""``python -m benchmarks COMMAND``: what quantglow costs and gives beside others; see README.md."""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    accuracy,
    batches,
    compile,
    conformance,
    contestants,
    cores,
    latency,
    layers,
    levels,
    memory,
    models,
    operators,
    peak,
    ratios,
    shapes,
    unseen,
)

COMMANDS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        latency,
        batches,
        accuracy,
        compile,
        memory,
        layers,
        levels,
        cores,
        peak,
        conformance,
        operators,
        ratios,
        shapes,
        unseen,
    )
}
"""Each adds its arguments and runs; the first paragraph of its docstring is its help."""


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        summary = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
        module.add_arguments(commands.add_parser(name, help=summary, description=summary))
    return top


def check_names(top: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with code 2 for a network or a quantizer that does not exist."""
    try:
        for name in getattr(options, "models", []):
            models.network(name)
        contestants.chosen(getattr(options, "quantizers", []))
    except ValueError as error:
        top.error(str(error))


def main() -> int:
    """Exit code: 1 if a runtime failed on a network, 2 for wrong arguments."""
    top = parser()
    options = top.parse_args()
    check_names(top, options)
    return COMMANDS[options.command].run(options)


if __name__ == "__main__":
    sys.exit(main())
