"""Latency of a new model beside its float model in onnxruntime, in half a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quantglow.foreign_types import Array
from quantglow.report.display.bars import Bar
from quantglow.report.peers.model_files import on_disk
from quantglow.report.peers.peers import Contender, compared
from quantglow.report.speed.busy import busy_note

PEER = "onnxruntime"
SECONDS = 0.1
"""Time for which each of both runs, in seconds; a slow model runs three times in any case."""


@dataclass(frozen=True)
class MeasuredLatency:
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

    def __str__(self) -> str:
        text = f"{milliseconds(self.seconds)} a call on {self.num_threads} thread(s) here"
        return f"{text}, {self._beside()}" + (f" (but {self.busy})" if self.busy else "")

    def _beside(self) -> str:
        if self.float_seconds is None or self.ratio is None:
            return f"onnxruntime's float not measured: {self.reason}"
        both = f"onnxruntime's float {milliseconds(self.float_seconds)}"
        if self.busy:  # threads that wait for a processor make any ratio
            return both
        faster = self.ratio >= 1
        ratio = self.ratio if faster else 1 / self.ratio
        words = f"{ratio:.1f} times as {'fast' if faster else 'slow'}"
        return f"{both}: {words}"

    def bars(self) -> Sequence[Bar]:
        """A bar for each runtime."""
        pairs = [("quantglow", self.seconds)]
        if self.float_seconds is not None:
            pairs.append(("onnxruntime float", self.float_seconds))
        longest = max(seconds for _, seconds in pairs)
        return [Bar(n, s / longest, milliseconds(s), n == "quantglow") for n, s in pairs]

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
    with on_disk(model) as path:
        found = compared(run, feeds, [Contender(PEER, PEER, path)], threads, SECONDS, rounds=1)
    ours, other = found.latencies
    theirs = None if other.reason else other.median
    return MeasuredLatency(ours.median, theirs, threads, other.reason, busy)


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, to three digits."""
    return f"{1e3 * seconds:.3g} ms"
