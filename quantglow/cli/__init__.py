"""The command line."""

import signal

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of shells for Ctrl-C."""
