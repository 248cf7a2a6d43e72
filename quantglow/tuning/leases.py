"""In the workers of a cluster: facts about the machine, and choices measured on one quiet core.

A lease is a lock of the machine, so that other processes that tune there wait; the system takes it
back when the process that has it ends.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantglow.backends.llvm.jit.machine import core_of, core_to_json
from quantglow.backends.llvm.targets import resolve
from quantglow.foreign_types import Array
from quantglow.graph.graph import Graph
from quantglow.processes.system import LOOK_SECONDS, idle_ticks, processors
from quantglow.tuning.measuring import Job, Measured, Measurer, parsed
from quantglow.tuning.records import this_host
from quantglow.version import __version__

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name that all processes of a running machine read, in containers, too."""


@dataclass(frozen=True)
class Machine:
    """Facts of a worker's machine.

    ``place``: equal for workers of one machine; ``host``: its name in records, equal for machines
    of one kind; ``level``: name of the target's instructions there, or why it does not run;
    ``core``: the costs of its core.
    """

    place: str
    host: str
    level: str
    core: Mapping[str, Any]
    version: str = __version__


@dataclass(frozen=True)
class Work:
    """A graph as ``printed`` gives it, for a target and a number of threads."""

    text: str
    constants: tuple[str, ...]
    arrays: tuple[Array, ...]
    target: str
    threads: int


def machine(target: str) -> Machine:
    """The facts of this machine, for a target by its name.  Raises ``BackendError`` for one that
    does not run here."""
    found = resolve(target)
    return Machine(place(), this_host(), found.name, core_to_json(found.core))


def place() -> str:
    """A name of this running machine."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return platform.node()


def measured(work: Work, core: Mapping[str, Any], jobs: Sequence[Job], samples: int) -> list[Any]:
    """The measurements of jobs, in order, on one core of this machine."""
    target = replace(resolve(work.target), core=core_of(core))
    with leased():
        return list[Measured](Measurer(graph_of(work), target, work.threads, samples).run(jobs))


_graphs: dict[int, tuple[Work, Graph]] = {}
"""The last graph, by its work: Dask gives the same object to every task of a worker."""


def graph_of(work: Work) -> Graph:
    """The graph of a work, read once."""
    known = _graphs.get(id(work))
    if known is None or known[0] is not work:
        _graphs.clear()
        known = _graphs[id(work)] = work, parsed(work.text, work.constants, work.arrays)
    return known[1]


@contextmanager
def leased() -> Iterator[None]:
    """Inside, no other process tunes on this machine, and children run on one quiet core."""
    with locked(Path(tempfile.gettempdir()) / f"quantglow-lease-{user()}"), pinned():
        yield


def user() -> int:
    """The number of the user; 0 where the system has none."""
    return os.getuid() if hasattr(os, "getuid") else 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside, this process has the lock of a file; none where the system has no such locks."""
    try:
        import fcntl  # Windows has no such module

        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def pinned() -> Iterator[None]:
    """Inside, this thread and the children that it starts run on the processor that is most idle,
    where the system lets them."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {quiet_processor()})
    except (AttributeError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def quiet_processor() -> int:
    """The processor that is idle for most of ``LOOK_SECONDS``.  Raises ``OSError``."""
    first = idle_ticks()
    time.sleep(LOOK_SECONDS)
    idle = [after - before for before, after in zip(first, idle_ticks(), strict=True)]
    return max(zip(idle, processors(), strict=True))[1]
