"""Generated code touches no byte outside its buffers, and the slack behind them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quantglow.codegen.llvm.targets import LEVELS, runs_here

ROOT = Path(__file__).parents[3]
TOO_FAR = """
import ctypes, sys
import numpy as np
from tests.support.guarded import guarded
array = guarded(np.zeros(100, np.uint8), at_end=sys.argv[1] == "end")
ctypes.string_at(array.ctypes.data + int(sys.argv[2]), 1)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mprotect as Linux has it")


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    # The repository's root, not that of the tests, is where the child imports from.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": ""}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


MODULES = ("guard_pages", "guard_batches")
TARGETS = ["native", *(name for name in LEVELS if runs_here(name))]
TWENTIETHS, THIRDS = 20, 3


def parts(number: int, target: str) -> Iterator[Any]:
    """Every twentieth case of a target, others for each target.  All are slow, in thirds; of these
    one is exhaustive, another one for each target: it has the same operators of other widths.
    """
    yield MODULES[number % len(MODULES)], target, number % TWENTIETHS, TWENTIETHS
    for module, part in itertools.product(MODULES, range(THIRDS)):
        left_out = (pytest.mark.exhaustive,) if part == number % THIRDS else ()
        yield pytest.param(module, target, part, THIRDS, marks=(pytest.mark.slow, *left_out))


@pytest.mark.parametrize(
    ("module", "target", "part", "count"),
    [case for number, target in enumerate(TARGETS) for case in parts(number, target)],
)
def test_kernels_stay_inside_their_buffers(module: str, target: str, part: int, count: int) -> None:
    done = child("-m", f"tests.unit.codegen.{module}", target, str(part), str(count))
    last = (done.stdout.splitlines() or ["nothing ran"])[-1]
    assert done.returncode == 0, f"{target}: {last}: exit code {done.returncode}\n{done.stderr}"
    assert last == "done"


@pytest.mark.parametrize(
    ("side", "position", "signalled"),
    [("end", 99, False), ("end", 100, True), ("start", 0, False), ("start", -1, True)],
)
def test_the_pages_catch_one_byte_too_far(side: str, position: int, signalled: bool) -> None:
    done = child("-c", TOO_FAR, side, str(position))
    assert done.returncode == (-signal.SIGSEGV if signalled else 0), done.stderr
