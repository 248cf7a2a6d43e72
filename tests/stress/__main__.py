"""The command line: each kind of stress for a number of seconds, in a process of its own."""

from __future__ import annotations

import argparse
import os
import sys

from tests.stress import forks, leaks, threads

KINDS = {"leaks": leaks.main, "forks": forks.main, "threads": threads.main}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=60.0)
    inputs = parser.parse_args()
    failures = KINDS[inputs.kind](inputs.seconds)
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    sys.stdout.flush()
    os._exit(bool(failures))  # threads that hang must not keep the process alive


if __name__ == "__main__":
    main()
