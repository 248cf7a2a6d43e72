"""Timelines: what kernels, onnxruntime and the compiler did when, in memory and in files.

Nothing is recorded but inside of ``recording``.  ``tracing`` writes the file of a block.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from quantglow.support.arguments import file_path
from quantglow.support.files import check_writable, writing
from quantglow.version import __version__

KERNEL, WAITING, STAGE, FOREIGN = "kernel", "waiting", "stage", "onnxruntime"
COMPILER = "compiler"
"""Categories of events."""

MICRO = 1e6

_ACTIVE: ContextVar[Trace | None] = ContextVar("quantglow_trace", default=None)


@dataclass(frozen=True)
class Event:
    """An interval on a thread, in seconds of ``time.perf_counter``."""

    name: str
    category: str
    thread: int
    begin: float
    end: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """The events of a block; several threads may add some.  ``names`` are those of threads.

    ``groups`` make further events, when the trace is written: what is traced does not wait for it.
    """

    events: list[Event] = field(default_factory=list)
    groups: list[Callable[[], Iterable[Event]]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def add(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def later(self, group: Callable[[], Iterable[Event]]) -> None:
        """Keep events that are made when the trace is written."""
        self.groups.append(group)

    def name_threads(self) -> None:
        """Keep the names of Python's threads while they live."""
        self.names |= {t.ident: t.name for t in threading.enumerate() if t.ident is not None}

    def to_json(self) -> dict[str, Any]:
        """The trace as Chrome's format has it: times in microseconds, threads by small numbers."""
        self.name_threads()
        grouped = chain.from_iterable(group() for group in self.groups)
        ordered = sorted([*self.events, *grouped], key=lambda event: (event.begin, -event.end))
        numbers: dict[int, int] = {}
        for event in ordered:
            numbers.setdefault(event.thread, len(numbers))
        return {
            "traceEvents": [
                *(self._name(thread, number) for thread, number in numbers.items()),
                *(self._complete(event, numbers[event.thread]) for event in ordered),
            ],
            "displayTimeUnit": "ns",
            "otherData": {"quantglow": __version__},
        }

    def _name(self, thread: int, number: int) -> dict[str, Any]:
        name = self.names.get(thread, f"thread {number}")
        return {
            "name": "thread_name",
            "ph": "M",
            "pid": 0,
            "tid": number,
            "args": {"name": name},
        }

    def _complete(self, event: Event, number: int) -> dict[str, Any]:
        return {
            "name": event.name,
            "cat": event.category,
            "ph": "X",
            "pid": 0,
            "tid": number,
            "ts": (event.begin - self.started) * MICRO,
            "dur": (event.end - event.begin) * MICRO,
            "args": event.facts,
        }


def active() -> Trace | None:
    """The trace of the block around, if there is one."""
    return _ACTIVE.get()


@contextmanager
def recording() -> Iterator[Trace]:
    """Record what the block does."""
    trace = Trace()
    token = _ACTIVE.set(trace)
    try:
        yield trace
    finally:
        _ACTIVE.reset(token)


@contextmanager
def span(name: str, category: str = STAGE) -> Iterator[None]:
    """Record the block as an event of this thread, if there is a trace."""
    trace = active()
    if trace is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        end = time.perf_counter()
        trace.add(Event(name, category, threading.get_ident(), begin, end))


def trace_run(model: Any, feeds: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Any]:
    """All outputs of a run that is traced; one run before it compiles and loads what is missing."""
    path = file_path("path", path)
    check_writable(path)
    model.run(None, feeds)
    with tracing(path):
        return list(model.run(None, feeds))


@contextmanager
def tracing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record what the block does; the file is written when it ends, also by an error.

    Kernels appear by the thread that ran them, with the gaps between them, calls of onnxruntime,
    LLVM at each kernel, and the stages of ``quantize_and_compile`` as wholes.  The format is
    Chrome's, which https://ui.perfetto.dev and ``chrome://tracing`` show.  Runs in other threads
    are recorded if they have a copy of the caller's context.

    Raises ``OptionError`` for a value that is not a path, and ``FileFormatError`` where the file
    cannot be written.
    """
    path = file_path("path", path)
    check_writable(path)
    with recording() as trace:
        try:
            yield
        finally:
            with writing(path) as temporary:
                temporary.write_text(json.dumps(trace.to_json()), encoding="utf-8")
