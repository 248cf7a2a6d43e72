"""Tuning on the machines of a Dask cluster.

Machines of one kind share the work of one search, and each kind has its own: what is fast on one
processor is a hint for others.  A worker that dies costs the choice that it was measuring: the
halves of its batch are measured again, down to that choice.

A worker measures on one quiet core.  It has a lock of its machine meanwhile, so that other
processes that tune there wait; the system takes it back when the process that has it ends.
"""

from __future__ import annotations

import os
import platform
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.machine import core_to_json, parse_core
from quantglow.codegen.llvm.targets import resolve
from quantglow.support.errors import BackendError, QuantglowError
from quantglow.support.extras import (
    POLL_SECONDS,
    Attendance,
    dask,
    large_messages,
    receive,
    require_client,
)
from quantglow.support.processes.interrupts import NEVER, Deadline
from quantglow.support.processes.system import LOOK_SECONDS, idle_ticks, processors
from quantglow.tuning.measuring import Job, Measurement, Measurer, Work
from quantglow.tuning.records import Record, hints, of_machine, this_host
from quantglow.tuning.tuner import Say, Tuner
from quantglow.version import __version__

BATCH = 32
"""Choices that a machine measures before it is asked for more."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name that all processes of a running machine read, in containers, too."""
DIED = "the worker that measured it died"
NO_MACHINE = "no machine of the cluster measures"
LOCAL = "start workers like this process, or tune without client."


@dataclass(frozen=True)
class Machine:
    """Facts of a worker's machine.

    ``place``: equal for workers of one machine; ``host``: its name in records, equal for machines
    of one kind; ``level``: name of the target's instructions there; ``core``: the costs of its
    core.
    """

    place: str
    host: str
    level: str
    core: Mapping[str, Any]
    version: str = __version__


def machine(target: str) -> Machine:
    """The facts of this machine, for a target by its name.  Raises ``BackendError`` for one that
    does not run here."""
    here, place = resolve(target), platform.node()
    with suppress(OSError):
        place = BOOT.read_text().strip()
    return Machine(place, this_host(), here.name, core_to_json(here.core))


def measure(work: Work, core: Mapping[str, Any], jobs: Sequence[Job], samples: int) -> list[Any]:
    """The measurements of jobs, in order, on one core of this machine with such costs."""
    user = getattr(os, "getuid", int)()
    with lock(Path(tempfile.gettempdir()) / f"quantglow-lease-{user}"), pin():
        return list[Measurement](Measurer(replace(work, core=core), samples).run(jobs))


@contextmanager
def lock(path: Path) -> Iterator[None]:
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
def pin() -> Iterator[None]:
    """Inside, this thread and the children that it starts run on the processor that is most idle
    for ``LOOK_SECONDS``, where the system lets them."""
    try:
        before, first = os.sched_getaffinity(0), idle_ticks()
        time.sleep(LOOK_SECONDS)
        idle = [after - ticks for ticks, after in zip(first, idle_ticks(), strict=True)]
        os.sched_setaffinity(0, {max(zip(idle, processors(), strict=True))[1]})
    except (AttributeError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def tune_on_cluster(client: Any, tuner: Tuner, earlier: Sequence[Record]) -> list[Record]:
    """New records of all kinds of machines of a cluster.  Raises ``OptionError`` for a client of
    another kind, ``BackendError`` if no machine measures."""
    with open_cluster(require_client(client), tuner) as cluster:
        kinds = cluster.kinds()
        with ThreadPoolExecutor(len(kinds), "quantglow-tune") as pool:
            runs = (partial(_tune_kind, cluster, tuner, earlier, *kind) for kind in kinds.items())
            jobs = [pool.submit(copy_context().run, run) for run in runs]
            try:
                wait(jobs)
            except BaseException:  # Ctrl-C: the threads end at once
                cluster.is_stopped = True
                raise
        errors = [job.exception() for job in jobs]
        if all(errors):
            raise errors[0] or BackendError(NO_MACHINE)
        for error in filter(None, errors):
            if not isinstance(error, QuantglowError):
                raise error
            tuner.say(str(error))
        return [record for job in jobs if not job.exception() for record in job.result()]


def _tune_kind(
    cluster: Cluster, tuner: Tuner, earlier: Sequence[Record], host: str, core: Core
) -> list[Record]:
    """New records of the machines of one kind."""
    target, measure = replace(tuner.target, core=core), partial(ClusterMeasurer, cluster, host)
    search = replace(tuner, target=target, measure=measure, host=host)
    return search.run(of_machine(earlier, host), hints(earlier, host))


@dataclass(eq=False)
class Cluster:
    """The machines of a cluster.  Thread-safe.

    ``work``: the graph, as a task of Dask.  ``answers``: the machine of each worker; a text where
    it cannot measure.  ``is_stopped``: nobody waits for measurements any more.
    """

    client: Any
    work: Any
    target: str
    level: str
    say: Say
    answers: dict[str, Machine | str] = field(default_factory=dict)
    is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def kinds(self) -> dict[str, Core]:
        """The costs of the core of each kind of machine.  Raises ``BackendError`` without one."""
        machines = self.machines().values()
        if not machines:
            reasons = {why for why in self.answers.values() if isinstance(why, str)}
            why = "; ".join(sorted(reasons)) or "it has no workers"
            raise BackendError(f"{NO_MACHINE}: {why}. Remedy: {LOCAL}")
        return {machine.host: parse_core(machine.core) for machine in machines}

    def machines(self) -> dict[str, Machine]:
        """The machines that can measure, by the addresses of their workers that are alive."""
        with self._lock:
            alive = list(self.client.nthreads())
            if new := [address for address in alive if address not in self.answers]:
                options: dict[str, Any] = {"workers": new, "on_error": "return"}
                for address, answer in self.client.run(machine, self.target, **options).items():
                    self.answers[address] = answer = self._check(answer)
                    if isinstance(answer, str):
                        self.say(f"{address} does not measure: {answer}")
            answers = {address: self.answers.get(address) for address in alive}
            return {a: answer for a, answer in answers.items() if isinstance(answer, Machine)}

    def _check(self, answer: Any) -> Machine | str:
        if not isinstance(answer, Machine):
            return str(answer)
        if answer.version != __version__:
            return f"it has quantglow {answer.version}, and this is {__version__}"
        if answer.level != self.level:
            return f"its instructions are {answer.level}, and the model is for {self.level}"
        return answer


@contextmanager
def open_cluster(client: Any, tuner: Tuner) -> Iterator[Cluster]:
    """The machines of a client's cluster, which get the graph of a tuner."""
    work = tuner.work
    with large_messages():
        sent = client.submit(receive, work, pure=False)
        try:
            yield Cluster(client, sent, work.target, tuner.target.name, tuner.say)
        finally:
            client.cancel([sent])


class TrialBatch(NamedTuple):
    """Jobs that a worker measures, by its address; ``place``: its machine."""

    jobs: Sequence[Job]
    address: str
    place: str


@dataclass(frozen=True)
class ClusterMeasurer:
    """Measures choices on the machines of one kind, on each one batch at a time."""

    cluster: Cluster
    host: str
    samples: int
    deadline: Deadline = NEVER

    def run(self, jobs: Sequence[Job]) -> list[Measurement]:
        """The measurements of jobs, in order; those for which no time was left are missing."""
        waiting = deque(jobs[first : first + BATCH] for first in range(0, len(jobs), BATCH))
        running: dict[Any, TrialBatch] = {}
        outcomes: dict[Job, Measurement] = {}
        attendance = Attendance(self.cluster.client)
        try:
            while running or (waiting and not self.deadline.is_over):
                if self.cluster.is_stopped:
                    raise CancelledError
                machines = {a: m for a, m in self.cluster.machines().items() if m.host == self.host}
                attendance.check(bool(running or machines))
                for address, facts in machines.items():
                    is_busy = any(batch.place == facts.place for batch in running.values())
                    if waiting and not is_busy and not self.deadline.is_over:
                        batch = TrialBatch(waiting.popleft(), address, facts.place)
                        running[self._submit(batch, facts)] = batch
                for task in self._end(running):
                    tried, results = running.pop(task).jobs, self._results(task)
                    if results is None and len(tried) > 1:
                        middle = len(tried) // 2
                        waiting.extendleft((tried[middle:], tried[:middle]))
                        continue
                    for each in results or [Measurement(tried[0], failure=DIED)]:
                        outcomes[each.job] = each
        finally:
            self.cluster.client.cancel(list(running))
        return [outcomes[job] for job in jobs if job in outcomes]

    def _submit(self, batch: TrialBatch, facts: Machine) -> Any:
        """A task that measures a batch."""
        arguments = (self.cluster.work, facts.core, list(batch.jobs), self.samples)
        return self.cluster.client.submit(
            measure, *arguments, workers=[batch.address], pure=False, retries=0
        )

    def _end(self, running: Mapping[Any, TrialBatch]) -> list[Any]:
        """The tasks that are done, and those whose workers died."""
        if not running:
            time.sleep(POLL_SECONDS / 10)
            return []
        with suppress(TimeoutError):
            dask("distributed").wait(
                list(running), timeout=POLL_SECONDS, return_when=FIRST_COMPLETED
            )
        alive = self.cluster.client.nthreads()
        return [t for t, batch in running.items() if t.done() or batch.address not in alive]

    def _results(self, task: Any) -> list[Measurement] | None:
        """The measurements of a task that ended; None where its worker died."""
        if not task.done():
            task.cancel()
            return None
        try:
            return list(task.result())
        except (dask("distributed").KilledWorker, CancelledError):
            return None
