"""Kernels tuned for this processor's core over those for the default core, on one instruction set.

If both cores are the same, the ratios show the noise.  The two take turns in many rounds: a virtual
processor may lose a third of its speed to others for seconds, so the minimum time and the median of
the rounds' ratios say more than the median time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.networks import registry
from benchmarks.networks.network import Feeds
from benchmarks.support.arguments import add_models, add_samples, positive
from benchmarks.support.quantglow_runtime import compiled_model
from benchmarks.support.runtime import PRECISIONS
from quantglow.backends.llvm.isa.costs import Core
from quantglow.backends.llvm.runtime.compilation import compile_program
from quantglow.backends.llvm.runtime.executable import LlvmExecutable
from quantglow.backends.llvm.targets import resolve


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--threads", type=positive, nargs="+", default=[1])
    command.add_argument("--seconds", type=positive, default=10, help="duration of each comparison")


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    print("| network | precision | threads | default core ms | this core ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.models:
        (feeds,) = registry.network(name).feeds(1, seed=1)
        for precision in PRECISIONS:
            for threads in options.threads:
                pair = both(name, precision, threads, options.samples)
                cells = figures([runner(one, feeds) for one in pair], options.seconds)
                print("|", " | ".join([name, precision, str(threads), *cells]), "|", flush=True)
    return 0


def both(name: str, precision: str, threads: int, samples: int) -> list[LlvmExecutable]:
    """The same program for the default core and for this processor's."""
    (planned,) = compiled_model(name, precision, threads, 1, samples).build.programs
    native = resolve("native")
    targets = (replace(native, core=Core()), native)
    return [compile_program(planned.program, planned.plan, t, threads) for t in targets]


def runner(executable: LlvmExecutable, feeds: Feeds) -> Callable[[], object]:
    """Function that runs an executable on the same input and output arrays."""
    outputs = executable.new_outputs()
    return lambda: executable.run(feeds, outputs)


def figures(runs: list[Callable[[], object]], seconds: int) -> list[str]:
    """Minimum milliseconds of each, and the median of the ratios to the first one."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rounds:
        rounds.append([milliseconds(one) for one in runs])
    least = [f"{min(column):.2f}" for column in zip(*rounds, strict=True)]
    return [*least, f"{statistics.median(own / default for default, own in rounds):.3f}"]


def milliseconds(run: Callable[[], object]) -> float:
    """Milliseconds of one run, after a run that brings the program's weights into the caches."""
    run()
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)
