"""Tuning of whole networks, on this machine or on those of a Dask cluster.

``tune_network`` takes a compiled model and gives a compiler with its choices.  On a cluster each
machine measures one batch of choices at a time.  Machines of one kind share the work of one search,
and each kind has its own: what is fast on one processor is a hint for others.  A worker that dies
costs the choice that it was measuring: the halves of its batch are measured again, down to that
choice.
"""

from __future__ import annotations

import threading
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quantglow.codegen.llvm.isa.costs import Core
from quantglow.codegen.llvm.machine import core_of
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.programs.build import Compiler
from quantglow.support.errors import BackendError, OptionError, QuantglowError
from quantglow.support.extras import (
    POLL_SECONDS,
    Attendance,
    checked_client,
    dask,
    large_messages,
    received,
)
from quantglow.support.processes.interrupts import NEVER, Deadline, is_interrupted
from quantglow.tuning import measuring as leases
from quantglow.tuning.measuring import (
    Job,
    Machine,
    Measured,
    Progress,
    Work,
    name_of,
    printed,
    untold,
)
from quantglow.tuning.records import (
    Record,
    hints,
    keep_records,
    of_machine,
    read_records,
    tuned_target,
)
from quantglow.tuning.tuner import DEFAULT_SEARCHER, Say, Tuner, quiet
from quantglow.version import __version__

BATCH = 32
"""Choices that a machine measures before it is asked for more."""

DIED = "the worker that measured it died"

NO_MACHINE = "no machine of the cluster measures"
LOCAL = "start workers like this process, or tune without client."

MAX_MINUTES = 5.0
"""Time of a tuning if none is given."""

MEASURE = "measure"
LEAVE_OUT = "Remedy: leave tune out."


@dataclass(frozen=True)
class Tuning:
    """A compiler with the choices of this machine.

    records  those that are new
    shapes   task -> its work in one line
    is_kept  whether later processes find the records
    """

    compiler: Compiler
    records: tuple[Record, ...]
    shapes: Mapping[str, str]
    is_kept: bool


def tune_network(
    model: object,
    compiler: Compiler,
    max_minutes: float | None = None,
    searcher: str = DEFAULT_SEARCHER,
    say: Say = quiet,
    client: Any = None,
) -> Tuning:
    """Measure the kernels of a compiled model that have no record on this machine, and keep the
    records.

    ``client``: of a Dask cluster, whose machines measure instead; the records name them.

    Raises ``OptionError`` for a model that is no single program, ``BackendError`` if nothing could
    be measured.
    """
    if not isinstance(model, CompiledModel):
        raise OptionError(f"tune={MEASURE!r}: onnxruntime runs a part of this model. {LEAVE_OUT}")
    if model.specialisations.is_empty:
        raise OptionError(
            f"tune={MEASURE!r}: the model leaves dimensions free. Remedy: give input_shapes."
        )
    graph, target = model.graph, compiler.target
    if target is None or not compiler.is_one_program(graph):
        raise OptionError(f"tune={MEASURE!r}: this model is no single program. {LEAVE_OUT}")
    deadline = Deadline.after(MAX_MINUTES if max_minutes is None else max_minutes)
    known = read_records()
    tuner = Tuner(graph, target, compiler.num_threads, deadline, searcher, say=say)
    if client is None:
        found = tuner.run(of_machine(known, tuner.host), hints(known, tuner.host))
    else:
        # Only here: most programs are tuned without a cluster.

        found = tuned_on(client, tuner, known)
    is_kept = keep_records(found)
    made = replace(compiler, target=tuned_target(target, [*known, *found]))
    shapes = {task.key: task.shape for task in tuner.planned[0]}
    return Tuning(made, tuple(found), shapes, is_kept)


def tuned_on(client: Any, tuner: Tuner, known: Sequence[Record]) -> list[Record]:
    """New records of all kinds of machines of a cluster.  Raises ``OptionError`` for a client of
    another kind, ``BackendError`` if no machine measures."""
    with open_cluster(checked_client(client), tuner) as cluster:
        kinds = cluster.kinds()
        with ThreadPoolExecutor(len(kinds), "quantglow-tune") as pool:
            runs = (partial(_tuned_kind, cluster, tuner, known, *kind) for kind in kinds.items())
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


def _tuned_kind(
    cluster: Cluster, tuner: Tuner, known: Sequence[Record], host: str, core: Core
) -> list[Record]:
    """New records of the machines of one kind."""

    def measuring(samples: int, deadline: Deadline) -> LeasedMeasurer:
        return LeasedMeasurer(cluster, host, samples, deadline)

    target = replace(tuner.target, core=core)
    own = replace(tuner, target=target, measure=measuring, host=host)
    return own.run(of_machine(known, host), hints(known, host))


@dataclass(frozen=True)
class Lease:
    """A machine that measures for us, by one of its workers."""

    address: str
    machine: Machine


@dataclass(eq=False)
class Cluster:
    """The machines of a cluster, and those that are leased.  Thread-safe.

    ``work``: the graph, as a task of Dask.  ``known``: the machine of each worker; a text where it
    cannot measure.  ``is_stopped``: nobody waits for measurements any more.
    """

    client: Any
    work: Any
    target: str
    level: str
    say: Say
    known: dict[str, Machine | str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._attendance = Attendance(self.client)

    def kinds(self) -> dict[str, Core]:
        """The costs of the core of each kind of machine.  Raises ``BackendError`` without one."""
        found = {m.host: core_of(m.core) for m in self.machines().values()}
        if not found:
            reasons = {why for why in self.known.values() if isinstance(why, str)}
            why = "; ".join(sorted(reasons)) or "it has no workers"
            raise BackendError(f"{NO_MACHINE}: {why}. Remedy: {LOCAL}")
        return found

    def machines(self) -> dict[str, Machine]:
        """The machines that can measure, by the addresses of their workers that are alive."""
        with self._lock:
            alive = list(self.client.nthreads())
            self._ask([address for address in alive if address not in self.known])
            found = {address: self.known.get(address) for address in alive}
            return {a: machine for a, machine in found.items() if isinstance(machine, Machine)}

    def _ask(self, new: Sequence[str]) -> None:
        """Ask new workers for their machines; the caller holds the lock."""
        if not new:
            return
        options: dict[str, Any] = {"workers": list(new), "on_error": "return"}
        for address, answer in self.client.run(leases.machine, self.target, **options).items():
            self.known[address] = answer = self._checked(answer)
            if isinstance(answer, str):
                self.say(f"{address} does not measure: {answer}")

    def _checked(self, answer: Any) -> Machine | str:
        if not isinstance(answer, Machine):
            return str(answer)
        if answer.version != __version__:
            return f"it has quantglow {answer.version}, and this is {__version__}"
        if answer.level != self.level:
            return f"its instructions are {answer.level}, and the model is for {self.level}"
        return answer

    def lease(self, host: str) -> Lease | None:
        """A machine of a kind that does not measure now; None if there is none."""
        machines = self.machines()
        with self._lock:
            for address, machine in machines.items():
                if machine.host == host and machine.place not in self.taken:
                    self.taken.add(machine.place)
                    return Lease(address, machine)
        return None

    def release(self, lease: Lease) -> None:
        """Give a machine back."""
        with self._lock:
            self.taken.discard(lease.machine.place)

    def submit(self, lease: Lease, jobs: Sequence[Job], samples: int) -> Any:
        """A task that measures jobs on a machine."""
        arguments = (self.work, lease.machine.core, list(jobs), samples)
        return self.client.submit(
            leases.measured, *arguments, workers=[lease.address], pure=False, retries=0
        )

    def check_present(self, host: str) -> None:
        """Raise ``BackendError`` if there has been no machine of a kind for long."""
        self._attendance.check(any(m.host == host for m in self.machines().values()))


@contextmanager
def open_cluster(client: Any, tuner: Tuner) -> Iterator[Cluster]:
    """The machines of a client's cluster, which get the graph of a tuner."""
    text, constants, arrays = printed(tuner.graph)
    target = name_of(tuner.target)
    work = Work(text, tuple(constants), tuple(arrays), target, tuner.threads)
    with large_messages():
        sent = client.submit(received, work, pure=False)
        try:
            yield Cluster(client, sent, target, tuner.target.name, tuner.say)
        finally:
            client.cancel([sent])


@dataclass(frozen=True)
class LeasedMeasurer:
    """Measures choices on the machines of one kind."""

    cluster: Cluster
    host: str
    samples: int
    deadline: Deadline = NEVER

    def run(self, jobs: Sequence[Job], progress: Progress = untold) -> list[Measured]:
        """The measurements of jobs, in order; those for which no time was left are missing."""
        waiting = deque(jobs[first : first + BATCH] for first in range(0, len(jobs), BATCH))
        found: dict[Job, Measured] = {}
        running: dict[Any, tuple[Sequence[Job], Lease]] = {}
        try:
            while running or (waiting and not self.is_over):
                if self.cluster.is_stopped:
                    raise CancelledError
                self._start(waiting, running)
                for batch, measured in self._done(running):
                    if measured is None and len(batch) > 1:
                        middle = len(batch) // 2
                        waiting.extendleft((batch[middle:], batch[:middle]))
                        continue
                    outcome = measured or [Measured(batch[0], failure=DIED)]
                    found |= {each.job: each for each in outcome}
                    progress(len(found))
        finally:
            for task, (_, lease) in running.items():
                task.cancel()
                self.cluster.release(lease)
        return [found[job] for job in jobs if job in found]

    @property
    def is_over(self) -> bool:
        """Whether nothing is begun any more."""
        return self.deadline.is_over or is_interrupted()

    def _start(
        self, waiting: deque[Sequence[Job]], running: dict[Any, tuple[Sequence[Job], Lease]]
    ) -> None:
        """Give batches to the machines that are free."""
        while waiting and not self.is_over and (lease := self.cluster.lease(self.host)):
            batch = waiting.popleft()
            running[self.cluster.submit(lease, batch, self.samples)] = batch, lease

    def _done(
        self, running: dict[Any, tuple[Sequence[Job], Lease]]
    ) -> list[tuple[Sequence[Job], list[Measured] | None]]:
        """The batches that are done, and their measurements; None where the worker died."""
        if not running:
            self.cluster.check_present(self.host)
            time.sleep(POLL_SECONDS / 10)
            return []
        with suppress(TimeoutError):
            dask("distributed").wait(
                list(running), timeout=POLL_SECONDS, return_when=FIRST_COMPLETED
            )
        alive: Mapping[str, int] = self.cluster.client.nthreads()
        outcomes = []
        for task, (batch, lease) in list(running.items()):
            if not task.done() and lease.address in alive:
                continue
            del running[task]
            self.cluster.release(lease)
            outcomes.append((batch, self._outcome(task)))
        return outcomes

    def _outcome(self, task: Any) -> list[Measured] | None:
        if not task.done():
            task.cancel()
            return None
        try:
            return list(task.result())
        except (dask("distributed").KilledWorker, CancelledError):
            return None
