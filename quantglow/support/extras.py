"""Extras: imports of the packages that they install, and checks and limits of Dask clusters."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from quantglow.support.arguments import brief
from quantglow.support.errors import BackendError, OptionError, QuantglowError

LOCAL = "start workers, or do without client."

Content = TypeVar("Content")

POLL_SECONDS = 1.0
"""Time after which a wait looks for workers that are gone."""

ABSENT_SECONDS = 60.0
"""Time without any worker after which work ends, where workers are about to start."""

GONE_SECONDS = 8.0
"""The same where all workers left, and nothing is in reach that starts them again."""

ANSWER_SECONDS = 1.0
"""Time in which a nanny accepts a connection."""

NANNIES: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()
"""The nannies of a client's workers when there were some: a wait may begin after all died."""


def package(name: str, extra: str, purpose: str, error: type[QuantglowError] = OptionError) -> Any:
    """A module of an optional package.  Raises ``error``, which names the extra."""
    try:
        return import_module(name)
    except ImportError as cause:
        raise error(
            f"{purpose} needs the package {name.partition('.')[0]}: {cause}. "
            f"Remedy: pip install 'quantglow[{extra}]'"
        ) from None


def require_client(client: Any) -> Any:
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


def cancellation_type() -> type[BaseException]:
    """The error of a task that was dropped.  asyncio takes 30 ms to import, for clusters only."""
    from asyncio import CancelledError

    return CancelledError


def large_messages() -> Any:
    """Inside, Dask does not warn of the model's size: it is sent once for each worker."""
    return dask("dask.config").set({"distributed.admin.large-graph-warning-threshold": "4GB"})


@dataclass
class Attendance:
    """The time since a cluster had workers, and whether more can come."""

    client: Any
    last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._note_nannies()

    def check(self, is_present: bool | None = None) -> None:
        """Raise ``BackendError`` where workers are absent for long; ``is_present``: whether those
        are there that are needed, by default whether any is.
        """
        has_workers = self._note_nannies()
        if has_workers if is_present is None else is_present:
            self.last = time.monotonic()
            return
        absent = time.monotonic() - self.last
        if absent > ABSENT_SECONDS or (absent > GONE_SECONDS and not self._can_start()):
            raise BackendError(f"the cluster has no workers any more. Remedy: {LOCAL}")

    def _note_nannies(self) -> bool:
        """Note the nannies of the workers that are there; whether there are any."""
        workers = self.client.scheduler_info()["workers"].values()
        if workers:
            NANNIES[self.client] = frozenset(w["nanny"] for w in workers if w["nanny"])
        return bool(workers)

    def _can_start(self) -> bool:
        """Whether workers may come: none did yet, the cluster adapts, or a nanny restarts one."""
        if getattr(self.client.cluster, "_adaptive", None) is not None:
            return True
        actions = (event.get("action") for _, event in self.client.get_events("all"))
        return "remove-worker" not in actions or any(map(answers, NANNIES.get(self.client, ())))


def answers(address: str) -> bool:
    """Whether somebody listens at an address of Dask; True where a socket cannot ask."""
    if not address.startswith(("tcp://", "tls://")):
        return True
    place = dask("distributed.comm.addressing").get_address_host_port(address)
    try:
        socket.create_connection(place, timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def await_result(client: Any, future: Any) -> Any:
    """The result of a future.  Raises ``BackendError`` where the cluster has no workers for long,
    or dropped the task.
    """
    attendance = Attendance(client)
    while True:
        try:
            return future.result(timeout=POLL_SECONDS)
        except TimeoutError:
            attendance.check()
        except cancellation_type() as error:
            raise BackendError(f"the cluster dropped tasks: {error}. Remedy: {LOCAL}") from None


def receive(content: Content) -> Content:
    """The content, as a task of which Dask keeps the result and repeats it where it is lost."""
    return content
