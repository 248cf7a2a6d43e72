"""A Dask cluster of processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import distributed

_ROOT = Path(__file__).parents[2]  # workers import modules of the tests
_SECONDS = 60  # that a scheduler and its workers take at most to start or to end


@contextmanager
def two_workers(variables: Mapping[str, str] | None = None) -> Iterator[distributed.Client]:
    """A client of a cluster of two processes that have these environment variables.

    The scheduler and the workers are started as users start them, by Dask's commands.
    ``LocalCluster`` would hold them in this process, and its own table of workers raises KeyError
    where one dies shortly after it was restarted, as workers of these tests do.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        file = str(Path(folder) / "scheduler.json")
        environment = {**os.environ, **(variables or {}), "PYTHONPATH": str(_ROOT)}
        ports = ("--host", "127.0.0.1", "--scheduler-file", file, "--no-dashboard")
        workers = ("--nworkers", "2", "--nthreads", "2", "--local-directory", folder)
        for command in (
            ("dask_scheduler", "--port", "0", *ports),
            ("dask_worker", *workers, *ports),
        ):
            stack.enter_context(_running(command, environment))
        client = stack.enter_context(
            distributed.Client(scheduler_file=file, timeout=_SECONDS)  # type: ignore[no-untyped-call]
        )
        client.wait_for_workers(2, timeout=_SECONDS)  # type: ignore[no-untyped-call]
        yield client


@contextmanager
def _running(command: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[None]:
    """Dask's command in a process that is ended afterwards."""
    module, *arguments = command
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()  # a nanny ends its worker
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
