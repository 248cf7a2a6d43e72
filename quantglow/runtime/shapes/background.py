"""Programs compiled in a thread while onnxruntime answers the calls that need them.

The first call at a new case waits ``QUICK_SECONDS`` for its program: one that serves all shapes, or
that an earlier process compiled, is ready by then.  An error of the thread is raised by the next
call at the case; calls after that wait for the compiler, and raise what it raises.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from quantglow.ir.graph.family import Case, may_decide
from quantglow.runtime.programs.answers import (
    COMPILING,
    FAILED,
    MOST_CASES,
    ONNXRUNTIME,
    READY,
    AnswerLog,
)
from quantglow.runtime.shapes.specializations import Served
from quantglow.support import debug
from quantglow.support.arrays import Array
from quantglow.support.errors import FallbackError
from quantglow.support.processes import threads
from quantglow.support.processes.threads import renew_after_fork

QUICK_SECONDS = 0.02
"""Time after the first call at a case in which calls wait for its program."""

THREAD = "quantglow-while-compiling"

Feeds = Mapping[str, Array]


class Programs(Protocol):
    """The programs of a model, and the whole model in onnxruntime."""

    def case_at(self, feeds: Feeds) -> Case:
        """The case of feeds, as far as it is known which values decide."""

    def ready(self, case: Case) -> Served | None:
        """The program of a case, if it is there."""

    def check(self, case: Case, feeds: Feeds) -> None:
        """Raise ``InputError`` for feeds that the model does not take."""

    def compile_at(self, feeds: Feeds) -> Served:
        """The program for the case of feeds, compiled now if it is new."""

    def in_onnxruntime(self, case: Case) -> Served:
        """The whole model in onnxruntime.  Raises ``FallbackError``."""


@dataclass(eq=False)
class BackgroundJob:
    """A case whose program waits for the thread, or is being compiled."""

    case: Case
    feeds: Feeds
    result: Future[Served] = field(default_factory=Future)
    end: float = field(default_factory=lambda: time.monotonic() + QUICK_SECONDS)

    def is_quick(self) -> bool:
        """Wait a little; whether it is done."""
        return bool(wait([self.result], max(0.0, self.end - time.monotonic())).done)


@dataclass(eq=False)
class Meanwhile:
    """Compiles the programs of new cases in a thread, one after the other.  Thread-safe.

    ``_failed``: the error of a case that could not be compiled; None once a call has raised it.
    """

    programs: Programs
    log: AnswerLog
    _jobs: dict[Case, BackgroundJob] = field(default_factory=dict)
    _waiting: deque[BackgroundJob] = field(default_factory=deque)
    _failed: dict[Case, BaseException | None] = field(default_factory=dict)
    _is_working: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def forget_threads(self) -> None:
        """Forget, in a forked child, what the thread of the parent was doing."""
        self._lock = threading.Lock()
        self._jobs, self._waiting, self._is_working = {}, deque(), False

    def at(self, feeds: Feeds) -> Served:
        """The program for feeds, or the model in onnxruntime while that is compiled.

        Raises the error of the thread, and those of ``compile_at`` where calls wait.
        """
        while True:
            case = self.programs.case_at(feeds)
            if (served := self._at(case, feeds)) is not None:
                return served

    def begin(self, feeds: Feeds, done: Callable[[], object]) -> Served | None:
        """The program for feeds; None if that is compiled for longer, and ``done`` is called by the
        thread when it has ended.  Calls that are answered elsewhere are not counted.

        Raises what ``at`` raises.
        """
        while True:
            case = self.programs.case_at(feeds)
            if (served := self.programs.ready(case)) is not None:
                return self._answered(case, served)
            self.programs.check(case, feeds)
            if (job := self._job(case, feeds)) is None:
                return self._answered(case, self._compile(case, feeds))
            if not job.is_quick():
                job.result.add_done_callback(lambda future: done())
                return None
            if (served := self._result(job, feeds)) is not None:
                return served

    def _at(self, case: Case, feeds: Feeds) -> Served | None:
        """``at`` for feeds of a case.  None where compiling showed that more values decide, so that
        the case is another one: the program may be that of another call's values."""
        if (served := self.programs.ready(case)) is not None:
            return self._answered(case, served)
        self.programs.check(case, feeds)
        job = self._job(case, feeds)
        if job is None:
            return self._answered(case, self._compile(case, feeds))
        if not job.is_quick():
            try:
                served = self.programs.in_onnxruntime(case)
            except FallbackError as error:
                debug.log(1, f"calls at {case} wait for its program: {error}")
            else:
                self.log.answered(case, ONNXRUNTIME)
                return served
        return self._result(job, feeds)

    def _result(self, job: BackgroundJob, feeds: Feeds) -> Served | None:
        """The program of a job; None where the feeds are of another case by now."""
        case = job.case
        try:
            served = job.result.result()
        except BaseException as error:
            is_of_job = job.result.done() and job.result.exception() is error
            if is_of_job and self.programs.case_at(feeds) != case:
                return None
            self._raise(case)
            raise
        return self._answered(case, served) if self.programs.case_at(feeds) == case else None

    def _answered(self, case: Case, served: Served) -> Served:
        self.log.answered(case, "program")
        return served

    def _compile(self, case: Case, feeds: Feeds) -> Served:
        """The program of a case that failed before, and is not compiled in the thread again."""
        served = self.programs.compile_at(feeds)
        with self._lock:
            self._failed.pop(case, None)
        self.log.came(case, READY)
        return served

    def _job(self, case: Case, feeds: Feeds) -> BackgroundJob | None:
        """The job of a case, a new one if there is none; None where the call has to wait.

        Raises the error of the thread that no call has raised yet.
        """
        with self._lock:
            if case in self._failed:
                if (error := self._failed[case]) is None:
                    return None
                self._failed[case] = None
                raise error
            job = self._jobs.get(case)
            if job is None:
                job = self._jobs[case] = BackgroundJob(case, keep(feeds))
                self._waiting.append(job)
                self.log.came(case, COMPILING)
            if not self._is_working:
                self._is_working = threads.start(THREAD, self._work) is not None
            if self._is_working:
                return job
            del self._jobs[case]  # no thread can be started, as at the end of the process
            self._waiting.remove(job)
            return None

    def _work(self) -> None:
        """Compile until no case waits."""
        while (job := self._next()) is not None:
            try:
                served = self.programs.compile_at(job.feeds)
            except BaseException as error:  # noqa: BLE001 - a call raises it
                self._done(job, error)
                job.result.set_exception(error)
            else:
                self._done(job)
                job.result.set_result(served)

    def _next(self) -> BackgroundJob | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._is_working = False
            return None

    def _done(self, job: BackgroundJob, error: BaseException | None = None) -> None:
        self.log.came(job.case, READY if error is None else FAILED)
        with self._lock:
            del self._jobs[job.case]
            if error is not None:
                self._failed[job.case] = error
                if len(self._failed) > MOST_CASES:
                    del self._failed[next(iter(self._failed))]

    def _raise(self, case: Case) -> None:
        """Note that a call has raised the error of a case."""
        with self._lock:
            if case in self._failed:
                self._failed[case] = None


def keep(feeds: Feeds) -> dict[str, Array]:
    """Feeds of the same case that nobody changes: copies of what may decide shapes, and zeros
    without memory of their own for the rest."""
    return {
        name: a.copy() if may_decide(a) else np.broadcast_to(np.zeros((), a.dtype), a.shape)
        for name, a in feeds.items()
    }
