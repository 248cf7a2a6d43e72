"""Limit of the processor time that compiling the kernels of one program takes.

``QUANTGLOW_COMPILE_SECONDS``, 1200 by default, is read when kernels are compiled.  It is compared
with an estimate from the first kernels, so that a model of 100,000 different layers is refused
after seconds, not after an hour.  Time of the threads that compile does not depend on what else the
machine does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from quantglow.arguments import limit
from quantglow.errors import CompileBudgetError

VARIABLE = "QUANTGLOW_COMPILE_SECONDS"
ALLOWED_SECONDS = 1200.0

SAMPLE = 200
"""Number of kernels whose time is an estimate of that of the others."""


def allowed_seconds() -> float:
    """The default, or what the environment says.  Raises ``OptionError``."""
    given = os.environ.get(VARIABLE)
    return limit(VARIABLE, given) if given else ALLOWED_SECONDS


@dataclass
class CompileMeter:
    """The time that some kernels take.  ``total``: their number, None if it is not known."""

    total: int | None
    allowed: float = field(default_factory=allowed_seconds)
    done: int = 0
    spent: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def timed(self, compile_: Callable[[str, str], bytes]) -> Callable[[str, str], bytes]:
        """The same function; its time in any thread counts."""

        def counted(symbol: str, text: str) -> bytes:
            start = time.thread_time()
            code = compile_(symbol, text)
            with self._lock:
                self.done += 1
                self.spent += time.thread_time() - start
            return code

        return counted

    def check(self) -> None:
        """Raise ``CompileBudgetError`` if all kernels take longer than is allowed."""
        with self._lock:
            done, spent = self.done, self.spent
        total = done if self.total is None or done < SAMPLE else max(done, self.total)
        expected = spent * total / max(done, 1)
        if expected <= self.allowed:
            return
        raise CompileBudgetError(
            f"compiling {total} different kernels takes about {expected:.0f} s of processor time "
            f"({done} took {spent:.0f} s), and {self.allowed:g} s are allowed. Remedy: if you "
            f"trust the model, raise the limit in the environment: {VARIABLE}=inf. Kernels "
            "compiled so far are in the cache."
        )
