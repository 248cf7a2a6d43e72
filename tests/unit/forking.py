"""Children of this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

PATIENCE_SECONDS = 60


def exit_code_of_child(check: Callable[[], bool]) -> int:
    """Exit code of a forked child: 0 if the check holds there, 1 if not, negative if it hangs or
    crashes.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_SECONDS)
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
