"""Programs of their own for shapes that come often, compiled in the background."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from quantglow.graph.case import Case
from quantglow.processes import background
from quantglow.processes.forking import renewed_after_fork
from quantglow.runtime.build import physical_cores

OFTEN = 500
"""After so many calls a case gets a program of its own."""

Check = Callable[[], None]
"""It is called between kernels, and raises ``CancelledError`` when the process ends."""


@dataclass(eq=False)
class OftenUsed:
    """Calls of each case, counted under the lock of the owner.

    ``make`` compiles the program of a case; it is called in a thread of its own, one at a time, and
    once for a case, until that is forgotten.
    """

    make: Callable[[Case, Check], None]
    _calls: Counter[Case] = field(default_factory=Counter)
    _tried: set[Case] = field(default_factory=set)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        renewed_after_fork(self)

    def called(self, case: Case) -> None:
        """Count a call; a case that comes often is compiled while others run, if there is a core
        for it.
        """
        if case in self._tried:
            return
        self._calls[case] += 1
        is_free = self._thread is None or not self._thread.is_alive()
        if self._calls[case] >= OFTEN and is_free:
            del self._calls[case]
            self._tried.add(case)
            if physical_cores() > 1:
                self._start(case)

    def leave(self, case: Case) -> None:
        """Compile nothing for a case: its owner does."""
        self._tried.add(case)

    def forget(self, case: Case) -> None:
        """Forget the calls of a case, and that it was tried."""
        self._calls.pop(case, None)
        self._tried.discard(case)

    def forget_threads(self) -> None:
        """Forget, in a forked child, what the thread of the parent was doing."""
        self._thread = None
        self._tried.clear()

    def _start(self, case: Case) -> None:
        work = partial(self.make, case, background.check_not_ending)
        self._thread = background.started("quantglow-often-used", work)
