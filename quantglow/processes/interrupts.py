"""Ctrl-C ends long work early and keeps the best so far; a second one aborts.

``keeping_best`` catches the first SIGINT for as long as its block runs.  Stages ask
``is_interrupted`` between steps, and end with what they have; ``ended`` notes for the report what
was cut, unless their result itself has that note.  Where Python allows no handler (another thread
than the main one) or the program has a handler of its own, nothing is caught.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

MESSAGE = "Ctrl-C: keeping the best so far; again to abort"


class Interrupted(Exception):
    """A step cannot be finished any more.  It never reaches the user."""


@dataclass
class _Call:
    """One call of the user's: whether Ctrl-C came, what was ended early, and the stages that
    ``is_first`` knows.
    """

    is_interrupted: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


_CALL: ContextVar[_Call | None] = ContextVar("quantglow_call", default=None)


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


def ended(stage: str, note: str) -> None:
    """Keep a note for the report that a stage was ended early."""
    call = _CALL.get()
    if call is not None:
        call.notes[stage] = note


def is_first(stage: str) -> bool:
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
