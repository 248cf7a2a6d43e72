"""A short run of each kind of stress; ``make stress`` is the long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.stress.__main__ import KINDS

SECONDS = 4
PATIENCE_SECONDS = 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_hangs_leaks_or_differs(kind: str) -> None:
    command = [sys.executable, "-m", "tests.stress", kind, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
