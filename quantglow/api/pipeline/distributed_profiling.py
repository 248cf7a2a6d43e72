"""Profiles recorded by the workers of a Dask cluster, equal to those of one process.

A histogram does not depend on how values are split (``profiling/histogram.py``), so each worker
profiles some samples and the profiles are merged as they arrive.  The caller reads the samples and
keeps what is under way; Dask repeats what dies with a worker.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from quantglow.api.models.families import open_float_family
from quantglow.api.options import DataOptions
from quantglow.api.pipeline.loop_bodies import profile_with_bodies
from quantglow.api.pipeline.request import Imported, computing
from quantglow.importer.onnx import open_model
from quantglow.ir.graph.family import Family, LateResults
from quantglow.ir.graph.graph import Graph
from quantglow.profiling import Profile
from quantglow.profiling.recording import NO_SAMPLES, note_early_end, show_progress
from quantglow.profiling.samples.feeds import Located, read_feeds
from quantglow.quantization.options import COMPILED, ProfileWith
from quantglow.support.errors import BackendError, CalibrationError, OptionError
from quantglow.support.extras import (
    LOCAL,
    POLL_SECONDS,
    Attendance,
    cancellation_type,
    dask,
    large_messages,
    receive,
    require_client,
)
from quantglow.support.processes.interrupts import is_interrupted
from quantglow.version import __version__

TASK_NBYTES, TASK_SAMPLES = 4 << 20, 8
"""Maximum size of the samples of one task; Dask keeps them until the task is done."""

TASKS = 3
"""Maximum number of tasks under way for each thread of the cluster."""

LIVES = 4
"""Number of times that a task is submitted: Dask gives one up when several workers that had it
died, whatever they died of."""

Environment = dict[str, str]
"""Facts on which the last bits of float results depend."""

Part = tuple[Environment, Profile]

Asked = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, ...], ProfileWith, LateResults]
"""Input shapes by name, the inputs whose values decide, see ``Family``, what computes, and whether
nodes decide sizes."""

_one_at_a_time = threading.Lock()
"""Families are not thread-safe, and profiling has threads of its own."""


def profile_on(
    client: Any,
    source: Imported,
    options: DataOptions,
    profile_with: ProfileWith = COMPILED,
) -> Profile:
    """The profile of ``source`` over the first batches of its data, by the workers of ``client``.

    Raises ``CalibrationError`` as ``profile`` does, and ``BackendError`` where the workers give no
    result or results of different processors.
    """
    batches = read_feeds(source.data, source.family.signature)
    first = islice(batches, options.subset_size)
    tasks = split_tasks(show_progress(first, source.data, options.progress))
    shapes = sorted((name, tuple(s)) for name, s in (options.input_shapes or {}).items())
    model = open_model(source.model).to_bytes()
    with large_messages():
        family = source.family
        asked = tuple(shapes), family.deciding, profile_with, family.late_results
        work = _Work(client, client.submit(receive, model, pure=False), asked)
        try:
            for samples in tasks:
                work.add(samples)
                if is_interrupted():
                    break
            return work.finish()
        finally:
            work.cancel()


def check_for_model(client: Any, model: Any) -> Any:
    """The client.  Raises ``OptionError`` unless it can send the model to workers."""
    require_client(client)
    if isinstance(model, Graph):
        raise OptionError(
            "client: workers import the model themselves. Remedy: pass its path or bytes instead "
            "of a Graph."
        )
    return client


def split_tasks(batches: Iterable[Located]) -> Iterator[list[Located]]:
    """Groups of samples, none of which is empty."""
    group: list[Located] = []
    nbytes = 0
    for feeds in batches:
        group.append(feeds)
        nbytes += sum(array.nbytes for array in feeds.values())
        if nbytes >= TASK_NBYTES or len(group) == TASK_SAMPLES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


@dataclass
class _Work:
    """Tasks under way, the samples of each and how often it may be submitted again; the result so
    far.
    """

    client: Any
    model: Any
    asked: Asked
    waiting: dict[Any, tuple[list[Located], int]] = field(default_factory=dict)
    environment: Environment | None = None
    merged: Profile | None = None

    def add(self, samples: list[Located]) -> None:
        """Submit a task, then wait until there is room for another one."""
        self._submit(samples, LIVES - 1)
        while not is_interrupted() and len(self.waiting) >= TASKS * max(self._threads(), 1):
            self._take_next()

    def finish(self) -> Profile:
        """The profile of all tasks; Ctrl-C drops those under way but the first."""
        while self.waiting and not (is_interrupted() and self.merged):
            self._take_next()
        if self.merged is None:
            raise CalibrationError(NO_SAMPLES)
        if is_interrupted():
            note_early_end(self.merged.samples)
        return self.merged

    def cancel(self) -> None:
        """End what is under way."""
        self.client.cancel([*self.waiting, self.model])

    def _threads(self) -> int:
        return sum(self.client.nthreads().values())

    def _submit(self, samples: list[Located], lives: int) -> None:
        task = self.client.submit(part_of_profile, self.model, self.asked, samples, pure=False)
        self.waiting[task] = samples, lives

    def _take_next(self) -> None:
        """Merge what is done; wait for it."""
        killed = dask("distributed").KilledWorker
        for task in self._done():
            samples, lives = self.waiting.pop(task)
            try:
                self._merge(*task.result())
            except killed as error:
                if not lives:
                    raise BackendError(
                        f"{places(samples)}: the workers that profiled them died: {error}. Remedy: "
                        "give them more memory, or profile these samples without client."
                    ) from error
                self._submit(samples, lives)
            except cancellation_type() as error:
                raise BackendError(f"the cluster dropped tasks: {error}. Remedy: {LOCAL}") from None

    def _done(self) -> list[Any]:
        """The tasks that are done, at least one unless Ctrl-C ends the work."""
        wait = partial(dask("distributed").wait, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        attendance = Attendance(self.client)
        while not (is_interrupted() and self.merged):
            try:
                return list(wait(list(self.waiting)).done)
            except TimeoutError:
                attendance.check()
        return []

    def _merge(self, environment: Environment, part: Profile) -> None:
        self.environment = self.environment or environment
        check_alike(self.environment, environment)
        self.merged = part if self.merged is None else self.merged.merge(part)


def check_alike(expected: Environment, other: Environment) -> None:
    """Raise ``BackendError`` unless two workers give the same float results."""
    if different := [name for name in expected if expected[name] != other.get(name)]:
        facts = "; ".join(f"{n}: {expected[n]}, and {other.get(n)}" for n in different)
        raise BackendError(
            f"the workers differ, so that their float results would ({facts}). Remedy: use "
            "workers of one kind."
        )


def places(samples: list[Located]) -> str:
    """The samples of a task in the user's data."""
    first, last = samples[0].place, samples[-1].place
    return first if first == last else f"{first} to {last}"


def part_of_profile(model: bytes, asked: Asked, samples: list[Located]) -> Part:
    """In a worker: the profile of some samples, and where it was recorded."""
    with _one_at_a_time, computing(asked[2]):
        return environment(), profile_with_bodies(
            worker_family(model, asked), samples, progress=False
        )


@lru_cache(2)
def worker_family(model: bytes, asked: Asked) -> Family:
    """The float graphs of a model, imported once in each worker."""
    shapes, deciding, _, late_results = asked
    family = open_float_family(model, dict(shapes) or None, late_results)
    family.deciding = deciding
    return family


def environment() -> Environment:
    """Versions, processor and linear algebra of this process."""
    libraries = blas_of_numpy(threadpool_info(), Path(np.__file__).parent)
    blas = (f"{x['internal_api']} {x.get('version')} {x.get('architecture')}" for x in libraries)
    return {
        "quantglow": __version__,
        "NumPy": np.__version__,
        "processor": platform.machine(),
        "BLAS": ", ".join(sorted(blas)),
    }


def blas_of_numpy(libraries: Sequence[Any], numpy: Path) -> list[Any]:
    """The BLAS libraries of a process that NumPy, in the folder ``numpy``, computes with.

    A wheel has libraries of its own, in ``name.libs`` beside its package, ``.libs`` or ``.dylibs``
    inside of it: NumPy's if it has any, else those that belong to no wheel.
    """
    blas = [library for library in libraries if library["user_api"] == "blas"]
    folders = [Path(library["filepath"]).parent for library in blas]
    wheels = [folder.name.endswith((".libs", ".dylibs")) for folder in folders]
    numpys = [f.name == f"{numpy.name}.libs" or numpy in f.parents for f in folders]
    chosen = numpys if any(numpys) else [not is_of_wheel for is_of_wheel in wheels]
    return [library for library, is_chosen in zip(blas, chosen, strict=True) if is_chosen]
