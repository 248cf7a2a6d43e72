"""Kernels tuned for this processor's core over those for the default core, on one instruction set.

If both cores are the same, the ratios show the noise.  They take turns in many rounds: a virtual
processor may lose a third of its speed to others for seconds, so the minimum time and the median of
the rounds' ratios say more than the median time.  With ``--tune-minutes`` a third program has
kernels that are measured first (``quantglow tune``); its ratio is to the program before it.
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
from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.targets import resolve
from quantglow.runtime.native.compilation import compile_program
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.programs.build import Compiler
from quantglow.tuning.networks import tune_network


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_models(command)
    add_samples(command)
    command.add_argument("--threads", type=positive, nargs="+", default=[1])
    command.add_argument("--seconds", type=positive, default=10, help="duration of each comparison")
    command.add_argument(
        "--tune-minutes", type=float, help="also tuned kernels, measured for so long"
    )


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table."""
    tuned = options.tune_minutes is not None
    print(
        "| network | precision | threads | default core ms | this core ms | ratio |",
        "tuned ms | ratio |" if tuned else "",
    )
    print("| --- " * (8 if tuned else 6) + "|")
    for name in options.models:
        (feeds,) = registry.network(name).feeds(1, seed=1)
        for precision in PRECISIONS:
            for threads in options.threads:
                built = programs(name, precision, threads, options.samples, options.tune_minutes)
                cells = figures([runner(one, feeds) for one in built], options.seconds)
                print("|", " | ".join([name, precision, str(threads), *cells]), "|", flush=True)
    return 0


def programs(
    name: str, precision: str, threads: int, samples: int, minutes: float | None
) -> list[LlvmExecutable]:
    """The same program for the default core and for this processor's, and tuned."""
    model = compiled_model(name, precision, threads, 1, samples)
    (planned,) = model.build.programs
    native = resolve("native")
    targets = [replace(native, core=Core()), native]
    if minutes is not None:
        tuned = tune_network(model, Compiler.of(num_threads=threads), minutes).compiler.target
        assert tuned is not None
        targets.append(tuned)
    return [compile_program(planned.program, planned.plan, t, threads) for t in targets]


def runner(executable: LlvmExecutable, feeds: Feeds) -> Callable[[], object]:
    """Function that runs an executable on the same input and output arrays."""
    outputs = executable.new_outputs()
    return lambda: executable.run(feeds, outputs)


def figures(runs: list[Callable[[], object]], seconds: int) -> list[str]:
    """Minimum milliseconds of each, with the median of the ratios to the one before."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rounds:
        rounds.append([milliseconds(one) for one in runs])
    columns = list(zip(*rounds, strict=True))
    cells = [f"{min(column):.3f}" for column in columns]
    for number in range(len(columns) - 1, 0, -1):
        pairs = zip(columns[number], columns[number - 1], strict=True)
        cells.insert(
            number + 1, f"{statistics.median(item / before for item, before in pairs):.3f}"
        )
    return cells


def milliseconds(run: Callable[[], object]) -> float:
    """Milliseconds of one run, after a run that brings the program's weights into the caches."""
    run()
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)
