"""Children of this process."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import tempfile
from collections.abc import Callable

PATIENCE_SECONDS = 60


def exit_code_of_child(check: Callable[[], bool]) -> int:
    """Exit code of a forked child: 0 if the check holds there, 1 if not, negative if it hangs or
    crashes.  Where it does, the stacks of its threads are printed.
    """
    with tempfile.TemporaryFile("w+") as stacks:
        child = os.fork()
        if child == 0:
            gc.freeze()  # sessions of onnxruntime in the garbage wait for threads of the parent
            faulthandler.enable(stacks)
            faulthandler.register(signal.SIGALRM, stacks, chain=True)
            signal.alarm(PATIENCE_SECONDS)
            code = 1
            try:
                code = 0 if check() else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        stacks.seek(0)
        print(stacks.read())
    return os.waitstatus_to_exitcode(status)
