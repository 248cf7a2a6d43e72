"""Time to bind programs for all shapes to a new shape, with and without the check of plans.

Networks with free dimensions are saved and loaded; the programs of files are checked at each shape.
A call at a shape that was bound before binds and checks nothing.  ``--tokens``: a decoder's state
instead, which has another shape at each token, of a model as it was built and of the loaded one.
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
from tests.support.decoder import Decoder, decoder_model

TOKEN_COLUMNS = ("layers", "built us", "loaded us")
CAPACITY, WARM, TURN = 512, 8, 10
"""Rows of a state; tokens before those that are measured; tokens of one model in a row."""

COLUMNS = ("network", "operands", "lines", "bound us", "bound and checked us")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    command.add_argument("--shapes", type=positive, default=40, help="different shapes")
    command.add_argument("--repeats", type=positive, default=20, help="the best of so many")
    command.add_argument(
        "--tokens", type=positive, help="tokens of a decoder, both models in turns"
    )


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table with a row for each program for all shapes, or for each decoder."""
    if options.tokens:
        print(f"{processor()}; median of {options.tokens} tokens\n")
        print(f"| {' | '.join(TOKEN_COLUMNS)} |\n{'| --- ' * len(TOKEN_COLUMNS)}|")
        for layers in (2, 4, 8):
            cells = map(str, (layers, *decoded(Decoder(layers=layers), options.tokens)))
            print(f"| {' | '.join(cells)} |", flush=True)
        return 0
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


def decoded(config: Decoder, count: int) -> tuple[int, int]:
    """Microseconds a token of a state of the model that is built here, and of the loaded one."""
    built: Any = qg.compile(decoder_model(config), num_threads=1)
    with tempfile.TemporaryDirectory() as folder:
        token(built.new_state(capacity=CAPACITY), config)
        built.save(Path(folder) / "decoder.qgm")
        loaded: Any = qg.load(Path(folder) / "decoder.qgm", num_threads=1)
    states = [model.new_state(capacity=CAPACITY) for model in (built, loaded)]
    for state in states * WARM:
        token(state, config)
    times: list[list[float]] = [[], []]
    while len(times[0]) < count:
        for state, seconds in zip(states, times, strict=True):
            if state.length + TURN >= CAPACITY:
                state.truncate(WARM)
            seconds += [token(state, config) for _ in range(TURN)]
    one, other = (round(1e6 * median(seconds)) for seconds in times)
    return one, other


def token(state: Any, config: Decoder) -> float:
    """Seconds of a step of a state."""
    past = np.empty((1, 1, state.length, 1), np.float32)
    feeds = config.feeds(np.array([[3]]), {"past_key_values.0.key": past})
    del feeds["past_key_values.0.key"]
    start = time.perf_counter()
    state.run(None, feeds)
    return time.perf_counter() - start


def best(call: Callable[[], object], repeats: int) -> float:
    """The least seconds of a call."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least
