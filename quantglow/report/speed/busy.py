"""A note on a machine that other programs use: its latencies are doubtful."""

from __future__ import annotations

from quantglow.processes.system import busy_processors

BUSY = 0.5
"""Processors in use by other programs from which on figures are doubtful."""


def busy_note() -> str:
    """A note if other programs use the processors now; nothing of this process may run."""
    load = busy_processors()
    if load is None or load < BUSY:
        return ""
    return f"the machine is busy ({load:.1f} processors in use): measure again when it is idle"
