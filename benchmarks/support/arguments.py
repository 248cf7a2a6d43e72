"""Arguments that several benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.networks import registry


def positive(text: str) -> int:
    """An int of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def network_name(text: str) -> str:
    """The name of a benchmark network."""
    try:
        return registry.network(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_models(command: argparse.ArgumentParser, default: Sequence[str] = registry.TABLE) -> None:
    command.add_argument("--models", nargs="+", type=network_name, default=default, metavar="NAME")


def add_samples(command: argparse.ArgumentParser, default: int = 8) -> None:
    command.add_argument("--samples", type=positive, default=default, help="calibration samples")
