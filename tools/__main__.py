"""Checks and tables of the repository; see tools/README.md."""

from __future__ import annotations

import sys

from benchmarks.support import commands

COMMANDS = {
    name: f"tools.{name}"
    for name in (
        "conformance",
        "function_accuracy",
        "operators",
        "options",
        "pictures",
        "prose",
        "qdq_agreement",
    )
}

if __name__ == "__main__":
    sys.exit(commands.run("python -m tools", __doc__, COMMANDS, sys.argv[1:]))
