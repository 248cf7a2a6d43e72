"""Entry point of the ``quantglow`` command.

Ctrl-C ends it without a traceback, even while it imports.  Characters that stdout cannot encode are
shown as ``?``.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper

from quantglow.cli import INTERRUPTED


def main() -> int:
    """Run the command line of the process; its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        # No exception: a library might catch or print it, and there is nothing to clean up.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    commands = import_module("quantglow.cli.main")
    signal.signal(signal.SIGINT, usual)
    if sys.stderr is None:  # It is closed, and print would write to stdout.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it is open until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return int(commands.main())
