"""Accuracy recovery with the runs over samples on the workers of a Dask cluster.

Samples are cut into shards.  A worker runs both graphs on a shard up to the next layer, keeps the
runs, and sends the moments of the layer; this process adds those of all shards in their order,
rounds the layer and sends its weights.  So the result depends neither on the number of workers nor
on which of them die: a worker that lacks the runs of a shard begins them again, with the layers
that are improved already.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from quantglow.api.pipeline.distributed_profiling import (
    LIVES,
    Environment,
    check_alike,
    environment,
)
from quantglow.api.pipeline.request import computing
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import ProfileWith
from quantglow.quantization.rounding.moments import Moments
from quantglow.quantization.rounding.sample_runs import Ends, RoundingTask, SampleRuns
from quantglow.quantization.rules import Operands
from quantglow.support.errors import BackendError
from quantglow.support.extras import await_result, dask, large_messages, receive

SHARD = 8
"""Number of samples of a shard.  Even, so that both halves of a shard belong to those of all."""

KEPT = 256
"""Maximum number of shards whose runs a worker keeps; those begun first are begun again."""


@dataclass(frozen=True)
class Shard:
    """Samples, also with int8 graphs for their shapes; the number of all, and of those before."""

    samples: Sequence[Feeds]
    int8_samples: Sequence[Feeds]
    total: int
    first: int


@dataclass(frozen=True)
class Order:
    """Work of one shard: the moments of a layer, or without a ``name`` the values of the ends.

    ``improved``: layers since the last order; all of them with ``shard``, which begins the runs.
    ``improved_count``: number of layers that were improved by then, 0 with ``shard``.
    """

    key: str
    name: str | None
    improved: dict[str, Operands]
    improved_count: int
    profile_with: ProfileWith
    shard: Shard | None = None


@dataclass(frozen=True)
class Reply:
    """The result of an order, None where the worker lacks the runs or they missed a layer, as they
    were left behind elsewhere; where it was computed.
    """

    result: Any
    worker: str
    environment: Environment


RUNS: dict[str, tuple[threading.Lock, SampleRuns]] = {}
"""In a worker: the runs of shards, by key."""

_changing = threading.Lock()
"""Held while ``RUNS`` changes: a worker has several threads."""


def answer(task: RoundingTask, order: Order) -> Reply:
    """In a worker: carry out an order."""
    worker = dask("distributed").get_worker().address
    held = RUNS.get(order.key)
    if order.shard is not None:
        shard = order.shard
        runs = SampleRuns(task, shard.samples, shard.int8_samples, shard.total, shard.first)
        held = threading.Lock(), runs
        with _changing:
            while len(RUNS) >= KEPT:
                del RUNS[next(iter(RUNS))]
            RUNS[order.key] = held
    if held is None:
        return Reply(None, worker, environment())
    lock, runs = held
    with lock, computing(order.profile_with):
        if len(runs.improved.operands) != order.improved_count:
            return Reply(None, worker, environment())
        for name, operands in order.improved.items():
            runs.improve(name, operands)
        result: Any = runs.ends() if order.name is None else runs.statistics(order.name)
    return Reply(result, worker, environment())


def _forgotten(prefix: str) -> None:
    """In a worker: let go of the runs of shards."""
    with _changing:
        for key in [key for key in RUNS if key.startswith(prefix)]:
            del RUNS[key]


@dataclass
class ClusterRuns:
    """``RoundingRuns`` over samples, by the workers of ``client``.

    ``places``: shard -> the worker that has its runs; ``sent``: number of improved layers that the
    shards know.
    """

    client: Any
    profile_with: ProfileWith
    task: RoundingTask
    samples: Sequence[Feeds]
    int8_samples: Sequence[Feeds]
    improved: dict[str, Operands] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    sent: int = 0
    environment: Environment | None = None

    def __post_init__(self) -> None:
        self.name = f"recovery-{uuid.uuid4().hex}"
        with large_messages():
            self.sent_task = self.client.submit(receive, self.task, pure=False)
        total = len(self.samples)
        self.shards = [
            Shard(
                self.samples[first : first + SHARD],
                self.int8_samples[first : first + SHARD],
                total,
                first,
            )
            for first in range(0, total, SHARD)
        ]

    def statistics(self, name: str) -> tuple[Moments, ...]:
        """``RoundingRuns``"""
        moments: list[tuple[Moments, ...]] = self._answers(name)
        return tuple(reduce(add, parts) for parts in zip(*moments, strict=True))

    def prefetch(self) -> None:
        """``RoundingRuns``; the workers wait for the layer."""

    def improve(self, name: str, operands: Operands) -> None:
        """``RoundingRuns``"""
        self.improved[name] = operands

    def ends(self) -> tuple[Ends, Ends]:
        """``RoundingRuns``"""
        if not self.task.ends:
            return (), ()
        answers: list[tuple[Ends, Ends]] = self._answers(None)
        results = [result for part, _ in answers for result in part]
        return results, [result for _, part in answers for result in part]

    def end(self) -> None:
        """``RoundingRuns``"""
        with suppress(Exception):  # A cluster that is gone has forgotten them.
            self.client.run(_forgotten, self.name)
            self.sent_task.cancel()

    def _answers(self, name: str | None) -> list[Any]:
        """The results of all shards, in their order."""
        with large_messages():
            futures = [self._submit(index, name) for index in range(len(self.shards))]
            answers = [self._answer(index, name, future) for index, future in enumerate(futures)]
        self.sent = len(self.improved)
        return answers

    def _answer(self, index: int, name: str | None, future: Any) -> Any:
        """The result of a shard, whose runs begin again where a worker has lost them."""
        killed = dask("distributed").KilledWorker
        for _ in range(LIVES):
            try:
                reply: Reply = await_result(self.client, future)
            except killed:
                future = self._submit(index, name, begins=True)
                continue
            self.environment = self.environment or reply.environment
            check_alike(self.environment, reply.environment)
            if reply.result is not None:
                self.places[index] = reply.worker
                return reply.result
            future = self._submit(index, name, begins=True)
        first = self.shards[index].first
        raise BackendError(
            f"samples {first} to {first + len(self.shards[index].samples) - 1}: workers that ran "
            "them died or lost them. Remedy: give them more memory, or quantize without client."
        )

    def _submit(self, index: int, name: str | None, begins: bool = False) -> Any:
        begins = begins or index not in self.places
        improved_count = 0 if begins else self.sent
        order = Order(
            f"{self.name}-{index}",
            name,
            dict(list(self.improved.items())[improved_count:]),
            improved_count,
            self.profile_with,
            self.shards[index] if begins else None,
        )
        options: dict[str, Any] = {"pure": False}
        if index in self.places:
            options |= {"workers": [self.places[index]], "allow_other_workers": True}
        return self.client.submit(answer, self.sent_task, order, **options)
