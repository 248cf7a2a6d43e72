"""Where the ``quantglow`` command begins: Ctrl-C ends it quietly while it still imports, too."""

from __future__ import annotations

import os
import signal
from importlib import import_module

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of shells for Ctrl-C."""


def main() -> int:
    """Run the command line of the process; its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        # No exception: a library might catch it, or print it; and there is nothing to clean up.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    commands = import_module("quantglow.cli.main")
    signal.signal(signal.SIGINT, usual)
    return int(commands.main())
