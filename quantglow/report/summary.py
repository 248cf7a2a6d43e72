"""The result in three lines, accuracy, size and speed; and the next step."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.report.display.bars import Bar, html_bars
from quantglow.report.memory.sizes import WeightSizes
from quantglow.report.peers.latency import MeasuredLatency

NOT_CHECKED = "Accuracy: not checked."
NOT_MEASURED = "Speed: not measured."
FULL_DB = 60.0
"""SQNR in dB at which the bar of accuracy is full."""


@dataclass(frozen=True)
class Summary:
    """The lines that a report begins with, and the next step, with which it ends.

    ``accuracy`` is a sentence, ``verdict`` its words and ``sqnr_db`` its figure; ``look_at`` are
    layers to look at, worst first; ``operators`` counts operators by precision.
    """

    accuracy: str
    verdict: str
    sqnr_db: float | None
    look_at: Sequence[str]
    operators: dict[str, int]
    sizes: WeightSizes | None
    latency: MeasuredLatency | None
    next_step: str

    def lines(self) -> Iterator[str]:
        """Accuracy, size, speed, the next step."""
        yield from self.figures()
        yield self.step

    @property
    def step(self) -> str:
        """The next step as a sentence."""
        return f"Next: {self.next_step}"

    def figures(self) -> Iterator[str]:
        """Accuracy, layers to look at, size, speed."""
        yield self.accuracy or NOT_CHECKED
        if self.look_at:
            yield f"Look at these layers: {', '.join(self.look_at)}."
        yield f"Size: {self.size}."
        yield f"Speed: {self.latency}." if self.latency else NOT_MEASURED

    @property
    def size(self) -> str:
        """Weights before and after, and the number of operators of each precision."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.operators.items())
        operators = f"operators: {counts}"
        return f"{self.sizes}; {operators}" if self.sizes else operators

    def to_json(self) -> dict[str, Any]:
        """The figures in types that ``json`` writes."""
        return {
            "verdict": self.verdict,
            "accuracy": self.accuracy,
            "look_at": [*self.look_at],
            "operators": self.operators,
            "weights": self.sizes.to_json() if self.sizes else None,
            "latency": self.latency.to_json() if self.latency else None,
            "next_step": self.next_step,
        }

    def html(self) -> str:
        """The lines, with bars beside the figures."""
        lines = "".join(f"<p style='margin:2px 0'>{html.escape(line)}</p>" for line in self.lines())
        return f"<div>{lines}{''.join(map(html_bars, self.charts()))}</div>"

    def charts(self) -> Iterator[Sequence[Bar]]:
        """Bars of accuracy, size and speed, as far as they are known."""
        if self.sqnr_db is not None:
            share = min(1.0, max(0.0, self.sqnr_db / FULL_DB))
            yield (Bar("accuracy", share, f"{self.sqnr_db:.1f} dB", is_ours=True),)
        if self.sizes:
            yield self.sizes.bars()
        if self.latency:
            yield self.latency.bars()
