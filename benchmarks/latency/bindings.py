"""Time to bind programs for all shapes to a new shape, with and without the check of plans.

Networks with free dimensions are saved and loaded; the programs of files are checked at each shape.
A call at a shape that was bound before binds and checks nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import quantglow as qg
from benchmarks.networks.free_networks import NETWORKS, SEED, FreeNetwork, drawn
from benchmarks.support.arguments import positive
from benchmarks.support.environment import processor
from benchmarks.support.free_models import quantglow_float
from quantglow.runtime.shapes.general import GeneralProgram

COLUMNS = ("network", "operands", "lines", "bound us", "bound and checked us")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    command.add_argument("--shapes", type=positive, default=40, help="different shapes")
    command.add_argument("--repeats", type=positive, default=20, help="the best of so many")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table with a row for each program for all shapes."""
    print(f"{processor()}; median of the shapes that a program serves\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    for name in options.models:
        for row in rows(NETWORKS[name], options.shapes, options.repeats):
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


def rows(network: FreeNetwork, count: int, repeats: int) -> Iterator[tuple[str, ...]]:
    """The cells of each program of a network."""
    rng, cases = np.random.default_rng(SEED), []
    with tempfile.TemporaryDirectory() as folder:
        model: Any = qg.load(quantglow_float(network, 1, Path(folder)), num_threads=1)
    for sizes in drawn(network.ranges, count):
        feeds = network.feeds(sizes, rng)
        model.run(None, feeds)
        cases.append(model.specialisations.case_at(feeds))
    for program in model.specialisations.generals:
        if not isinstance(program, GeneralProgram):
            continue  # segments have bindings each of their own
        served = [values for case in cases if (values := program.values_at(case)) is not None]
        bindings, operands = program.loaded.bindings, program.loaded.table.operands
        times = [
            median(best(partial(bind, v), repeats) for v in served)
            for bind in (bindings.unchecked, bindings.at)
        ]
        counts = len(operands.pointers), len(operands.numbers.lines)
        yield network.name, *map(str, counts), *(f"{1e6 * seconds:.0f}" for seconds in times)


def best(call: Callable[[], object], repeats: int) -> float:
    """The least seconds of a call."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least
