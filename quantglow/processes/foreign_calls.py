"""Ctrl-C ends calls of foreign code.

Python handles a signal in the main thread, between two of its own instructions: never while that
thread is in a library.  So the call moves to another thread, and the main thread waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")
End = Callable[[], object]

PATIENCE = 1.0
"""Seconds that a call may take to end.  One that does not listen goes on, and nobody waits."""

_CALLS: ContextVar[set[End] | None] = ContextVar("quantglow_calls", default=None)


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
