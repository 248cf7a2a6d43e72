"""Pythons of emulated processors, and the tests that run there.

``python -m tests.cross.emulated --levels i8mm`` (``make test-arm-userland``: all levels) runs the
subset of the suite, a file at a time, and prints the CPU seconds of each.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.cross_setup import PROCESSORS, environment, interpreter, is_installed

ROOT = Path(__file__).resolve().parents[2]
LEVELS = tuple(PROCESSORS)

SUITE = (
    "tests/unit/runtime/native/test_executable.py",
    "tests/unit/codegen/test_guard_pages.py",
    "tests/unit/codegen/test_host.py",
    "tests/unit/codegen/test_instruction_sets.py",
    "tests/unit/runtime/jit/test_link.py",
    "tests/unit/codegen/test_llvm_functions.py",
    "tests/unit/runtime/native/test_threads.py",
    "tests/unit/runtime/saved/test_saving.py",
    "tests/matrix/test_llvm_activations.py",
    "tests/matrix/test_llvm_convolution.py",
    "tests/matrix/test_llvm_indexing.py",
    "tests/matrix/test_llvm_kernels.py",
    "tests/matrix/test_llvm_quantized.py",
    "tests/matrix/test_llvm_rows.py",
    "tests/matrix/test_llvm_softmax.py",
    "tests/matrix/test_llvm_sums.py",
    "tests/matrix/test_llvm_weight_groups.py",
    "tests/properties/test_int16_laws.py",
    "tests/properties/test_lowering_laws.py",
    "tests/properties/test_saved_model_laws.py",
    "tests/e2e/test_pinned_integers.py",
)
"""Tests of code generation, loading and waiting: the matrix of int8, guard pages, saved files, the
laws of backends, and pinned integers."""

QUICK = (
    "tests/unit/codegen/test_host.py",
    "tests/unit/runtime/jit/test_link.py",
    "tests/properties/test_saved_model_laws.py",
)
"""The part of them that CI runs: 83 seconds of CPU."""

NOT_EMULATED = (
    "tests/unit/runtime/native/test_threads.py::test_a_forked_child_gets_workers_of_its_own",
)
"""QEMU 7.2 ends a process that forks while other threads run, by an assertion of its own."""

needs_emulator = pytest.mark.skipif(
    not is_installed(), reason="no emulated AArch64: `make cross-setup` installs it"
)


def run(
    level: str, *arguments: str, seconds: int = 3600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A Python on an emulated processor whose best level is ``level``, in the repository;
    ``variables`` of its environment."""
    return subprocess.run(
        [str(interpreter(level)), *arguments],
        cwd=ROOT,
        env={**environment(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def run_tests(level: str, paths: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The tests of some files on an emulated processor, with few examples each."""
    left_out = (f"--deselect={name}" for name in NOT_EMULATED)
    ours = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
    return run(level, *ours, *left_out, *paths, HYPOTHESIS_PROFILE="emulated")


def main() -> int:
    """The number of files that fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.cross.emulated")
    parser.add_argument("paths", nargs="*", default=SUITE)
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=LEVELS)
    options = parser.parse_args()
    failed = 0
    for level, path in itertools.product(options.levels, options.paths):
        before = os.times()
        done = run_tests(level, [path])
        after = os.times()
        seconds = sum(after[2:4]) - sum(before[2:4])
        print(f"{level:8} {path}: exit code {done.returncode}, {seconds:.0f} s", flush=True)
        if done.returncode:
            failed += 1
            print(done.stdout[-3000:], done.stderr[-3000:], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
