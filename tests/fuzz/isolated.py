"""Runs seeds in a process of their own: a crash, a hang or too much memory is a finding, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

SECONDS = 60
"""Time limit of one case on an idle machine, in seconds; then it counts as hanging."""

MEMORY_NBYTES = 6 << 30
"""Maximum address space of the process, in bytes."""

ENVIRONMENT = {"QUANTGLOW_VERIFY": "1", "QUANTGLOW_IMPORT_NODES": "20000"}
"""Maximum number of nodes, more than a drawn model has; a busy machine compiles so many in time."""


def patience() -> float:
    """The time limit of one case, in seconds: longer where processes wait for processors."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return SECONDS * max(1.0, waiting)


@dataclass(frozen=True)
class Finding:
    """The finding on the case of a seed."""

    seed: int
    kind: str
    detail: str


def findings(what: str, seeds: range) -> Iterator[Finding | None]:
    """A result for each seed, in order; None for a case without a finding."""
    while seeds:
        for value in results(what, seeds):
            yield value
            seeds = seeds[1:]
            if value and value.kind == "crash":
                break


def results(what: str, seeds: range) -> Iterator[Finding | None]:
    """The results of one process, up to the seed that ends it."""
    command = [sys.executable, "-m", "tests.fuzz", "worker", what]
    command += [str(seeds.start), str(seeds.stop)]
    pending = seeds.start
    # A pipe that nobody reads would fill up and stop the process.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        ) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            if line.startswith("{"):
                data = json.loads(line)
                pending += 1
                yield (
                    Finding(data["seed"], data["kind"], data["detail"]) if data["kind"] else None
                )
        process.wait()
        errors.seek(0)
        said = errors.read()
    if pending < seeds.stop:
        yield Finding(pending, "crash", f"exit code {process.returncode}: {last_words(said)}")


def last_words(text: str) -> str:
    """The innermost frames of the last traceback that ``faulthandler`` wrote, else the end."""
    start = max(text.rfind(mark) for mark in ("Timeout (", "Fatal Python error"))
    return text[start:][:1200] if start >= 0 else text[-600:]
