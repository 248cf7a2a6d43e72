"""Placement of worker threads on other processors than the thread that they help.

A worker that waits on the caller's own processor helps nobody until the system moves it.  Most
systems soon do; some, virtual machines among them, wake a thread again and again where it slept,
though another processor is idle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantglow.foreign_types import Array
from quantglow.processes.system import c_function

PATIENCE = 16
"""Number of calls in a row for which a worker may stay on the caller's processor."""


def _find_processor() -> Callable[[], int] | None:
    """The C library's function that tells the processor of the calling thread."""
    function: Callable[[], int] | None = c_function("sched_getcpu")
    return function if function is not None and hasattr(os, "sched_setaffinity") else None


current_processor = _find_processor()


@dataclass
class Placement:
    """``workers``: the system's numbers of threads; ``seen``: on which processor each last ran.

    Workers are kept off the caller's processor only while it stays there itself: where the system
    moves threads about, it knows better.
    """

    workers: Sequence[int]
    seen: Array
    together: int = 0
    forbidden: int | None = None

    def update(self) -> None:
        """To be called before work is handed out."""
        if current_processor is None:
            return
        here = current_processor()
        if self.forbidden is not None:
            if here != self.forbidden:
                self.forbidden = None
                self._allow([sorted(os.sched_getaffinity(0))] * len(self.workers))
            return
        self.together = self.together + 1 if here in self.seen.tolist() else 0
        if self.together >= PATIENCE:
            self.together, self.forbidden = 0, here
            others = sorted(os.sched_getaffinity(0) - {here})
            count = len(self.workers)
            self._allow([others[i::count] or others for i in range(count)])

    def _allow(self, processors: Sequence[Sequence[int]]) -> None:
        """For each worker the processors on which it may run."""
        for worker, own in zip(self.workers, processors, strict=True):
            try:
                if own:
                    os.sched_setaffinity(worker, own)
            except OSError:  # these processors were taken from the process meanwhile
                return
