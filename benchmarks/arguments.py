"""Arguments that several benchmarks share."""

from __future__ import annotations

import argparse

from benchmarks import models


def positive(text: str) -> int:
    """An int of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def add_models(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", default=models.TABLE, metavar="NAME")


def add_samples(command: argparse.ArgumentParser, default: int = 8) -> None:
    command.add_argument("--samples", type=positive, default=default, help="calibration samples")
