"""Interrupts: Ctrl-C and deadlines end searches early, and calls of foreign code.

``keeping_best`` catches the first SIGINT for as long as its block runs; a second one aborts.
Stages ask ``is_interrupted`` between steps, and end with what they have; ``end`` notes for the
report what was cut, unless their result itself has that note.  Where Python allows no handler
(another thread than the main one) or the program has a handler of its own, nothing is caught.

A ``Deadline`` ends a search when ``max_minutes`` are over, or at Ctrl-C.

``endable`` lets Ctrl-C end calls of foreign code.  Python handles a signal in the main thread,
between two of its own instructions: never while that thread is in a library.  So the call moves to
another thread, and the main thread waits for it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

MESSAGE = "Ctrl-C: keeping the best so far; again to abort"

_CALL: ContextVar[_Call | None] = ContextVar("quantglow_call", default=None)

INTERRUPTED, LATE = "Ctrl-C", "max_minutes"

BEST_KEPT = "the best found until then is kept"

Result = TypeVar("Result")
End = Callable[[], object]

PATIENCE = 1.0
"""Seconds that a foreign call may take to end.  One that does not listen goes on, and nobody
waits."""

_CALLS: ContextVar[set[End] | None] = ContextVar("quantglow_calls", default=None)


class Interrupted(Exception):
    """A step cannot be finished any more.  It never reaches the user."""


@dataclass
class _Call:
    """One call of the user's: whether Ctrl-C came, what was ended early, and the stages that
    ``_is_first`` knows.
    """

    is_interrupted: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


@contextmanager
def keeping_best() -> Iterator[None]:
    """Inside, the first Ctrl-C makes ``is_interrupted`` true; nested, it changes nothing."""
    if _CALL.get() is not None:
        yield
        return
    call = _Call()
    token = _CALL.set(call)
    try:
        with _caught(call):
            yield
    finally:
        _CALL.reset(token)


def is_interrupted() -> bool:
    """Whether Ctrl-C came during the current call; in threads that work for it, too."""
    call = _CALL.get()
    return call is not None and call.is_interrupted


def check_interrupt() -> None:
    """Raise ``Interrupted`` if Ctrl-C came."""
    if is_interrupted():
        raise Interrupted


def end(stage: str, note: str) -> None:
    """Keep a note for the report that a stage was ended early."""
    call = _CALL.get()
    if call is not None:
        call.notes[stage] = note


def _is_first(stage: str) -> bool:
    """Whether this is the first time that the current call ends the stage early."""
    call = _CALL.get()
    if call is None:
        return True
    is_new = stage not in call.told
    call.told.add(stage)
    return is_new


def notes() -> tuple[str, ...]:
    """Notes on stages that were ended early in the current call, in order."""
    call = _CALL.get()
    return () if call is None else tuple(call.notes.values())


def say(message: str) -> None:
    """Show a line on stderr at once; from a handler of a signal, too."""
    line = f"quantglow: {message}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:  # The signal came while stderr was being written to.
        os.write(2, line.encode())
    except (AttributeError, OSError, ValueError):
        pass  # There is no stderr, or it is closed.


@contextmanager
def _caught(call: _Call) -> Iterator[None]:
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if call.is_interrupted:
            signal.signal(signal.SIGINT, usual)
            raise KeyboardInterrupt
        call.is_interrupted = True
        say(MESSAGE)

    try:
        signal.signal(signal.SIGINT, handle)
    except ValueError:  # Only the main thread may set handlers.
        yield
        return
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, usual)


class TimeUp(Exception):
    """No time is left: the best result so far counts.  This never reaches the user."""


@dataclass(frozen=True)
class Deadline:
    """A moment of ``time.monotonic``, in seconds; Ctrl-C comes before it."""

    at: float = math.inf

    @staticmethod
    def after(minutes: float | None) -> Deadline:
        """The deadline that many minutes from now; None: there is none."""
        return NEVER if minutes is None else Deadline(time.monotonic() + 60 * minutes)

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return is_interrupted() or time.monotonic() >= self.at

    @property
    def reason(self) -> str:
        """The cause that ended the time; empty as long as some is left."""
        if is_interrupted():
            return INTERRUPTED
        return LATE if self.is_over else ""

    @property
    def minutes_left(self) -> float | None:
        """The time that a search which follows may take; None: any."""
        return None if self.at == math.inf else max(self.at - time.monotonic(), 0.0) / 60

    @property
    def halfway(self) -> Deadline:
        """The deadline after half of the time that is left."""
        return self.part(0.5)

    def part(self, share: float) -> Deadline:
        """The deadline after a share of the time that is left."""
        now = time.monotonic()
        return Deadline(now + share * (self.at - now))

    def check(self) -> None:
        """Raise ``TimeUp`` if there is no time left."""
        if self.is_over:
            raise TimeUp

    def note(self, stage: str, outcome: str = BEST_KEPT) -> str:
        """A note that ``stage`` is cut short, if no time is left; empty if there is some."""
        if not (reason := self.reason):
            return ""
        if _is_first(stage) and reason == LATE:  # Ctrl-C was answered when it came.
            say(f"{LATE} are over: keeping the best so far ({stage})")
        return f"{reason} ended {stage} early: {outcome}"

    def ends(self, stage: str) -> bool:
        """Whether no time is left; if so, the report will say that ``stage`` was cut short."""
        if note := self.note(stage):
            end(stage, note)
        return bool(note)


NEVER = Deadline()


def endable(call: Callable[[], Result], end: End) -> Result:
    """``call()``; on Ctrl-C ``end()`` makes it return early, and the interrupt is raised.

    In other threads than the main one, it ends with the ``ending`` block around.
    """
    if threading.current_thread() is threading.main_thread():
        return _in_a_thread(call, end)
    calls = _CALLS.get()
    if calls is None:
        return call()
    calls.add(end)
    try:
        return call()
    finally:
        calls.discard(end)


def _in_a_thread(call: Callable[[], Result], end: End) -> Result:
    future: Future[Result] = Future()
    thread = threading.Thread(target=_settle, args=(future, call), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started, as at the end of the process
        return call()
    try:
        return future.result()
    finally:
        if not future.done():
            end()
            thread.join(PATIENCE)


def _settle(future: Future[Result], call: Callable[[], Result]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
        future.set_exception(error)


@contextmanager
def ending(helpers: Sequence[Future[Any]]) -> Iterator[None]:
    """End the calls of helpers that begin inside, if the block raises; wait for all of them.

    Helpers may be added while the block lasts; they run in copies of its context.
    """
    calls: set[End] = set()
    token = _CALLS.set(calls)
    try:
        yield
    except BaseException:
        while wait(_begun(helpers), PATIENCE / 10).not_done:
            for end in tuple(calls):
                end()
        raise
    finally:
        _CALLS.reset(token)
    wait(_begun(helpers))


def _begun(helpers: Iterable[Future[Any]]) -> list[Future[Any]]:
    """The helpers that were not cancelled: of those ``wait`` waits until their thread is free."""
    return [helper for helper in helpers if not helper.cancelled()]
