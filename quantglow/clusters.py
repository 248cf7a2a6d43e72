"""Dask clusters: the checks and limits of work on their workers."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from quantglow.arguments import brief
from quantglow.errors import BackendError, OptionError
from quantglow.extras import package

LOCAL = "start workers, or do without client."

Content = TypeVar("Content")

POLL_SECONDS = 1.0
"""Time after which a wait looks for workers that are gone."""
ABSENT_SECONDS = 60.0
"""Time without any worker after which work ends."""


def checked_client(client: Any) -> Any:
    """The client.  Raises ``OptionError`` unless it is one of Dask that is not asynchronous."""
    if not isinstance(client, dask("distributed").Client) or client.asynchronous:
        raise OptionError(
            f"client must be a dask.distributed.Client that is not asynchronous, got "
            f"{brief(client)}"
        )
    return client


def dask(name: str) -> Any:
    """A module of Dask.  Raises ``OptionError`` where it is not installed."""
    return package(name, "distributed", "client")


def cancelled_error() -> type[BaseException]:
    """The error of a task that was dropped.  asyncio takes 30 ms to import, for clusters only."""
    from asyncio import CancelledError

    return CancelledError


def large_messages() -> Any:
    """Inside, Dask does not warn of the model's size: it is sent once for each worker."""
    return dask("dask.config").set({"distributed.admin.large-graph-warning-threshold": "4GB"})


def awaited(client: Any, future: Any) -> Any:
    """The result of a future.  Raises ``BackendError`` where the cluster has no workers for long,
    or dropped the task.
    """
    seen = time.monotonic()
    while True:
        try:
            return future.result(timeout=POLL_SECONDS)
        except TimeoutError:
            seen = time.monotonic() if client.nthreads() else seen
        except cancelled_error() as error:
            raise BackendError(f"the cluster dropped tasks: {error}. Remedy: {LOCAL}") from None
        if time.monotonic() - seen > ABSENT_SECONDS:
            raise BackendError(f"the cluster has no workers any more. Remedy: {LOCAL}")


def received(content: Content) -> Content:
    """The content, as a task of which Dask keeps the result and repeats it where it is lost."""
    return content
