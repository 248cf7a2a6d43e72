"""Functions for the workers of a cluster, in the place of those that measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantglow.tuning import cluster
from quantglow.tuning.cluster import Machine
from quantglow.tuning.measuring import Job, Measurement, Work

Core = Mapping[str, Any]
Jobs = Sequence[Job]

FOLDER = "QUANTGLOW_TEST_FOLDER"
"""Environment variable of the folder in which workers leave files for each other."""
PATIENCE_SECONDS = 30


def quick(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """Half the time of the default for tiles of one column, else its time."""

    def seconds(job: Job) -> float:
        return 0.5 if job.choice.tile and job.choice.tile[1] == 1 else 1.0

    return [Measurement(job, (seconds(job),) * samples, (1.0,) * samples) for job in jobs]


def alone(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """``quick``; an error if another worker measures."""
    file = Path(os.environ[FOLDER]) / "measuring"
    file.touch(exist_ok=False)
    time.sleep(0.02)
    file.unlink()
    return quick(work, core, jobs, samples)


def together(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """``quick``, once two processes measure at the same time."""
    folder = Path(os.environ[FOLDER])
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    return quick(work, core, jobs, samples)


def deadly(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """``quick``; a choice of 2 unrolled steps ends the worker."""
    if any(job.choice.unroll == 2 for job in jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(work, core, jobs, samples)


def held(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """``quick``; the first process waits to be ended, and leaves its number."""
    folder = Path(os.environ[FOLDER])
    if not list(folder.iterdir()):
        (folder / str(os.getpid())).touch()
        time.sleep(PATIENCE_SECONDS)
    return quick(work, core, jobs, samples)


def broken(work: Work, core: Core, jobs: Jobs, samples: int) -> list[Measurement]:
    """An error of the worker."""
    raise ZeroDivisionError("not of ours")


def machine_of_each(target: str, dask_worker: Any = None) -> Machine:
    """Workers that are machines of their own, of one kind."""
    return replace(cluster.machine(target), place=str(dask_worker.address))


def kind_of_each(target: str, dask_worker: Any = None) -> Machine:
    """Workers that are machines of two kinds."""
    return replace(machine_of_each(target, dask_worker), host=f"kind {dask_worker.name}")


def another_version(target: str) -> Machine:
    """A machine with another quantglow."""
    return replace(cluster.machine(target), version="0.0")


def another_level(target: str) -> Machine:
    """A machine of other instructions."""
    return replace(cluster.machine(target), level="z80")
