"""quantglow's int8 beside its float, at each feature level that runs here."""

from __future__ import annotations

import argparse
import statistics
import time

import quantglow as qg
from benchmarks.networks import registry
from benchmarks.networks.network import Feeds, Network
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.quantglow_runtime import compiled_whole
from benchmarks.support.runtime import shaped
from quantglow.codegen.llvm.targets import LEVELS, runs_here


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--threads", type=positive, default=1)
    command.add_argument("--rounds", type=positive, default=15)


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print("| network | level | float ms | int8 ms | float / int8 |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.models:
        network = registry.network(name)
        (feeds,) = network.feeds(1, seed=1)
        profile = qg.profile(shaped(network, 1), network.feeds(options.samples), progress=False)
        for level in filter(runs_here, LEVELS):
            pair = compiled(network, profile, level, options.threads)
            times = [[milliseconds(model, feeds) for model in pair] for _ in range(options.rounds)]
            in_float, in_int8 = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(a / b for a, b in times)
            print(
                f"| {name} | {level} | {in_float:.2f} | {in_int8:.2f} | {ratio:.2f} |", flush=True
            )
    return 0


def compiled(
    network: Network, profile: qg.Profile, level: str, threads: int
) -> tuple[qg.CompiledModel, qg.CompiledModel]:
    """The network in float and in int8 for a feature level."""
    path = shaped(network, 1)
    quantized = qg.quantize_and_compile(
        path, profile, target=level, num_threads=threads, verify=False
    )
    floats = qg.compile(path, target=level, num_threads=threads)
    return compiled_whole(floats), compiled_whole(quantized)


def milliseconds(model: qg.CompiledModel, feeds: Feeds) -> float:
    """Milliseconds of one run, after a run that brings the model's weights into the caches."""
    model.run(None, feeds)
    start = time.perf_counter()
    model.run(None, feeds)
    return 1e3 * (time.perf_counter() - start)
