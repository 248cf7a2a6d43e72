"""Time of each kernel call beside its limit."""

from __future__ import annotations

import argparse

from rich.console import Console

from benchmarks.networks import registry
from benchmarks.support.arguments import add_samples, network_name, positive
from benchmarks.support.quantglow_runtime import compiled_model
from benchmarks.support.runtime import PRECISIONS
from quantglow.evaluation.call_times import profile_calls
from quantglow.report.speed import calls_table, kernels_table

WIDTH = 160


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", type=network_name, metavar="MODEL")
    command.add_argument("--precision", choices=PRECISIONS, default="int8")
    command.add_argument("--repeats", type=positive, default=30)
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument("--batch", type=positive, default=1)
    add_samples(command)


def run(options: argparse.Namespace) -> int:
    """Print the times of a real sample's kernel calls."""
    name, precision, batch = options.model, options.precision, options.batch
    model = compiled_model(name, precision, options.threads, batch, options.samples)
    (feeds,) = registry.network(name).feeds(1, seed=1, batch=batch)
    report = profile_calls(model.build, feeds, options.repeats)
    console = Console(width=None if Console().is_terminal else WIDTH)
    console.print(f"{name} {precision}, batch {batch}", highlight=False)
    console.print(calls_table(report).rich(), kernels_table(report).rich())
    return 0
