"""Programs in processes of their own, to see how these end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECONDS = 120


def outcome(program: str, caches: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a Python program that begins with empty ``caches``."""
    environment = {"PATH": "", "XDG_CACHE_HOME": str(caches), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout, done.stderr
