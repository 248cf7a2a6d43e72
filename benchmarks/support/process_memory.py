"""Resident memory of this process.  Imports nothing that would be counted itself."""

from __future__ import annotations

from pathlib import Path


def status_nbytes(key: str) -> int:
    """A figure of /proc/self/status: VmRSS is what is resident, VmHWM the most there was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return 1024 * int(value)
