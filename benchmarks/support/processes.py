"""Child processes of the benchmarks: where they start, their environment, their last message."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository: children run there, so that ``python -m benchmarks...`` finds its modules."""

MESSAGE_CHARS = 300
"""Maximum length of a message, in characters."""


def module_command(module: str, *arguments: object) -> list[str]:
    """Command line that runs a module of the benchmarks in a child."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


def environment_with(cache: Path) -> dict[str, str]:
    """Environment of a child with its own kernel cache, allowed to write bytecode.

    Installed packages have their bytecode; compiling quantglow's own would take half a second.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "QUANTGLOW_CACHE_DIR": str(cache)}


def last_line(errors: str, code: int) -> str:
    """The last line that a child wrote to stderr, or its exit code if it wrote none."""
    return (errors.strip().splitlines() or [f"exit code {code}"])[-1][:MESSAGE_CHARS]
