"""Latency of a compiled model beside other runtimes, on the same inputs and in turns.

Others run in child processes, which may crash or hang without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantglow.foreign_types import Array
from quantglow.processes.isolation import IsolationError, RaisedInChild, called
from quantglow.report.display.bars import text_bar
from quantglow.report.display.tables import Table
from quantglow.report.speed.call_latencies import call_latencies

OURS = "quantglow"
PLACES = {
    "onnxruntime": "quantglow.report.peers.onnxruntime_latency:onnxruntime_latencies",
    "openvino": "quantglow.report.peers.openvino_latency:openvino_latencies",
}
PEERS = tuple(PLACES)
ROUNDS = 3
LOADING_SECONDS = 600.0
"""Time that a runtime may take to load a model, and for one call."""


@dataclass(frozen=True)
class Contender:
    """A model file and the runtime that runs it, one of ``PEERS``."""

    name: str
    runtime: str
    path: str


@dataclass
class Latency:
    """Seconds of the calls of one runtime, or the reason why there are none."""

    runtime: str
    seconds: list[float] = field(default_factory=list)
    reason: str = ""

    def percentile(self, share: float) -> float:
        """Seconds that this share of calls, in percent, takes at most."""
        return float(np.percentile(self.seconds, share))

    @property
    def median(self) -> float:
        return self.percentile(50)

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        if self.reason:
            return {"runtime": self.runtime, "reason": self.reason}
        figures = {"median_seconds": self.median, "p99_seconds": self.percentile(99)}
        return {"runtime": self.runtime, **figures}


@dataclass(frozen=True)
class Comparison:
    """Latencies of quantglow, first, and of others."""

    latencies: Sequence[Latency]

    @property
    def verdict(self) -> str:
        """A sentence about the fastest of the others."""
        ours, *others = self.latencies
        ran = [peer for peer in others if not peer.reason]
        if not ran:
            return "no other runtime ran the model"
        best = min(ran, key=lambda peer: peer.median)
        ratio = best.median / ours.median
        if ratio >= 1:
            return f"{OURS} is {ratio:.2f} times as fast as {best.runtime}"
        return f"{best.runtime} is {1 / ratio:.2f} times as fast as {OURS}"

    def table(self) -> Table:
        """A row for each runtime, with a bar as long as its median."""
        ours = self.latencies[0].median
        longest = max(each.median for each in self.latencies if not each.reason)
        rows = [row(each, ours, longest) for each in self.latencies]
        columns = ("runtime", "median ms", "p99 ms", f"of {OURS}", "")
        return Table("Latency", columns, rows, frozenset(columns[1:4]))

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "verdict": self.verdict,
            "runtimes": [each.to_json() for each in self.latencies],
        }


def row(latency: Latency, ours: float, longest: float) -> tuple[str, ...]:
    """The cells of a runtime."""
    if latency.reason:
        return (latency.runtime, "", "", "", latency.reason)
    median = latency.median
    bar = text_bar(median / longest)
    figures = (f"{1e3 * median:.3f}", f"{1e3 * latency.percentile(99):.3f}", f"{median / ours:.2f}")
    return (latency.runtime, *figures, bar)


def compared(
    run: Callable[[Mapping[str, Array]], object],
    feeds: Mapping[str, Array],
    contenders: Sequence[Contender],
    threads: int,
    seconds: float,
    rounds: int = ROUNDS,
) -> Comparison:
    """Latencies of ``run``, and of models in other runtimes: each for ``seconds`` in all."""
    ours, others = Latency(OURS), [Latency(each.name) for each in contenders]
    facts = {"names": list(feeds), "threads": threads, "seconds": seconds / rounds}
    for _ in range(rounds):
        ours.seconds += call_latencies(lambda: run(feeds), seconds / rounds)
        for peer, each in zip(others, contenders, strict=True):
            if not peer.reason:
                measure(peer, each.runtime, list(feeds.values()), {"path": each.path, **facts})
    return Comparison([ours, *others])


def measure(peer: Latency, runtime: str, arrays: Sequence[Array], facts: Mapping[str, Any]) -> None:
    """Add a round of a runtime, or the reason why it does not run."""
    limit = LOADING_SECONDS + facts["seconds"]
    try:
        (found,) = called(PLACES[runtime], arrays, facts, seconds=limit)
        peer.seconds += found.tolist()
    except IsolationError as error:
        peer.reason = reason_of(error, runtime)


def reason_of(error: IsolationError, packages: str) -> str:
    """Why a child gave no result, in one line; ``packages``: what pip may have to install."""
    if isinstance(error, RaisedInChild) and error.kind == "ModuleNotFoundError":
        return f"not installed: pip install {packages}"
    return next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
