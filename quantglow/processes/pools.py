"""Calls on the threads of a pool, also after the main thread has ended.

Python's pools take no more calls then, while other threads of a service may go on for days.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def submitted(
    pool: ThreadPoolExecutor, function: Callable[..., Result], *args: Any
) -> Future[Result]:
    """The future of a call on a thread of the pool; where the main thread has ended, of one that
    the caller has made.  Raises ``RuntimeError`` for a pool that was shut down before."""
    try:
        return pool.submit(function, *args)
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
    future: Future[Result] = Future()
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 - who asks for the result raises it
        future.set_exception(error)
    return future
