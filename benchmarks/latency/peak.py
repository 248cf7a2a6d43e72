"""Measured int8 and float peak of this processor: the upper limit of any program."""

from __future__ import annotations

import argparse
from functools import cache

from benchmarks.support.arguments import positive
from quantglow.codegen.llvm.targets import LEVELS, resolve, runs_here
from quantglow.runtime.native.peak import Peak, measure_peak


@cache
def native_peak(threads: int) -> Peak:
    """Peak of this processor, measured once in a process."""
    return measure_peak(resolve("native"), threads)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", nargs="+", type=positive, default=[1, 2])


def run(options: argparse.Namespace) -> int:
    """Print a Markdown table: each feature level that runs here, each number of threads."""
    print("| level | threads | int8 GMAC/s | float GMAC/s | cache GB/s | memory GB/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for level in ("native", *(name for name in LEVELS if runs_here(name))):
        for count in options.threads:
            peak = measure_peak(resolve(level), count)
            figures = [peak.integer_macs, peak.float_macs, peak.cached_nbytes, peak.memory_nbytes]
            cells = " | ".join(f"{figure / 1e9:.1f}" for figure in figures)
            print(f"| {level} | {count} | {cells} |", flush=True)
    return 0
