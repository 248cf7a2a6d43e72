"""Generated code touches no byte outside its buffers, and the slack behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quantglow.backends.llvm.targets import LEVELS, runs_here

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
PARTS = 5


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("module", MODULES)
def test_kernels_of_a_part_stay_inside_their_buffers(module: str, target: str) -> None:
    """Each target runs another part of the cases."""
    assert_inside(module, target, TARGETS.index(target) % PARTS, PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("module", MODULES)
def test_kernels_stay_inside_their_buffers(module: str, target: str) -> None:
    assert_inside(module, target, 0, 1)


def assert_inside(module: str, target: str, first: int, step: int) -> None:
    done = child("-m", f"tests.unit.backends.{module}", target, str(first), str(step))
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
