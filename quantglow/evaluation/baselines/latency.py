"""Latency of a compiled model beside other runtimes, on the same inputs and in turns.

Others run in child processes, which may crash or hang without harm.  ``latency_beside_float``
takes half a second: the latency of a new model beside its float model in onnxruntime.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.evaluation.latencies import busy_note, call_latencies
from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import IsolationError, RaisedInChild, call_isolated
from quantglow.support.views import HasText

OURS = "quantglow"
PLACES = {
    "onnxruntime": "quantglow.evaluation.baselines.runtimes:onnxruntime_latencies",
    "openvino": "quantglow.evaluation.baselines.runtimes:openvino_latencies",
}
PEERS = tuple(PLACES)
ROUNDS = 3
LOADING_SECONDS = 600.0
"""Time that a runtime may take to load a model, and for one call."""

PEER = "onnxruntime"
SECONDS = 0.1
"""Time for which ``latency_beside_float`` runs each model, in seconds; a slow one runs three times
in any case."""


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


def compare_latency(
    run: Callable[[Mapping[str, Array]], object],
    feeds: Mapping[str, Array],
    contenders: Sequence[Contender],
    threads: int,
    seconds: float,
    rounds: int = ROUNDS,
) -> list[Latency]:
    """Latencies of ``run``, first, and of models in other runtimes: each for ``seconds`` in all."""
    ours, others = Latency(OURS), [Latency(each.name) for each in contenders]
    facts = {"names": list(feeds), "threads": threads, "seconds": seconds / rounds}
    for _ in range(rounds):
        ours.seconds += call_latencies(lambda: run(feeds), seconds / rounds)
        for baseline, each in zip(others, contenders, strict=True):
            if not baseline.reason:
                measure(baseline, each.runtime, list(feeds.values()), {"path": each.path, **facts})
    return [ours, *others]


def measure(
    baseline: Latency, runtime: str, arrays: Sequence[Array], facts: Mapping[str, Any]
) -> None:
    """Add a round of a runtime, or the reason why it does not run."""
    limit = LOADING_SECONDS + facts["seconds"]
    try:
        (times,) = call_isolated(PLACES[runtime], arrays, facts, seconds=limit)
        baseline.seconds += times.tolist()
    except IsolationError as error:
        baseline.reason = failure_reason(error, runtime)


def failure_reason(error: IsolationError, packages: str) -> str:
    """Why a child gave no result, in one line; ``packages``: what pip may have to install."""
    if isinstance(error, RaisedInChild) and error.kind == "ModuleNotFoundError":
        return f"not installed: pip install {packages}"
    return next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")


@dataclass(frozen=True)
class MeasuredLatency(HasText):
    """Median seconds of a call on one sample, and of the float model in onnxruntime.

    ``reason`` says why the latter is None; ``busy`` is a note on other work of the machine.
    """

    seconds: float
    float_seconds: float | None
    num_threads: int
    reason: str = ""
    busy: str = ""

    @property
    def ratio(self) -> float | None:
        """onnxruntime's time over ours: above 1, ours is faster."""
        return None if self.float_seconds is None else self.float_seconds / self.seconds

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MeasuredLatency:
        """The object from the result of ``to_json``."""
        other = data["float_seconds"]
        return MeasuredLatency(
            float(data["seconds"]),
            None if other is None else float(other),
            int(data["num_threads"]),
            str(data["reason"]),
            str(data["busy"]),
        )


def latency_beside_float(
    run: Callable[[Mapping[str, Array]], object],
    feeds: Mapping[str, Array],
    model: Any,
    threads: int,
) -> MeasuredLatency:
    """The latency of ``run``, and of ``model`` (path, bytes or ModelProto) in onnxruntime."""
    busy = busy_note()
    with _on_disk(model) as path:
        contender = Contender(PEER, PEER, path)
        ours, other = compare_latency(run, feeds, [contender], threads, SECONDS, rounds=1)
    theirs = None if other.reason else other.median
    return MeasuredLatency(ours.median, theirs, threads, other.reason, busy)


@contextmanager
def _on_disk(model: Any) -> Iterator[str]:
    """The absolute path of a model, which may be a path already (weights may lie beside it)."""
    if isinstance(model, str | os.PathLike):
        yield os.path.abspath(model)
        return
    content = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        yield str(path)
