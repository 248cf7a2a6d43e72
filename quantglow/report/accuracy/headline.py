"""The report's first sentence: the accuracy of int8 against float, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantglow.report.accuracy.accuracy import OutputAccuracy, decibels, worst_sqnr_db

UNSEEN = "that calibration did not see"
SAME = "that calibration used, too"
VALIDATION = "of the validation data"
"""Origin of the samples of the check."""

EVERY, FEWEST_SAMPLES = 5, 10
"""One sample in so many is held out of calibration, and none of fewer different samples."""

WHY_FEW = {
    UNSEEN: f"one in {EVERY} is held out, and large models are checked on fewer",
    SAME: f"none is held out of fewer than {FEWEST_SAMPLES} different ones",
}
"""The reason why a check has few samples, by their origin."""

CLOSENESS = (
    (40.0, 0.99, "very close to float"),
    (30.0, 0.97, "close to float"),
    (10.0, 0.8, "visibly off float"),
)
"""Minimum SQNR in dB of the worst output, minimum share of equal answers, and the words for
both."""

FAR = "far from float, and not usable as it is"

NOTHING_QUANTIZED = "no operator became int8; the reasons are in the table of layers"
"""Note of a report whose model is float after all."""

ALL_FLOAT_WARNING = f"WARNING: {NOTHING_QUANTIZED}. The outputs are those of the float model."
"""The headline then."""

ALL_FLOAT = "no operator is int8"
"""The verdict then."""


@dataclass(frozen=True)
class RightAnswers:
    """Shares of right answers of the float and of the int8 model, among ``labels``."""

    labels: int
    float_share: float
    int8_share: float

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RightAnswers:
        """The object from the result of ``asdict``."""
        shares = float(data["float_share"]), float(data["int8_share"])
        return RightAnswers(int(data["labels"]), *shares)

    def __str__(self) -> str:
        return (
            f"Float finds {self.float_share:.2%} and int8 {self.int8_share:.2%} "
            f"of {self.labels} labels"
        )


def headline(
    outputs: Sequence[OutputAccuracy],
    samples: int,
    origin: str,
    right: RightAnswers | None,
    has_warnings: bool,
    subject: str = "int8 is",
) -> str:
    """One or two sentences; ``has_warnings`` if the calibration data is unusual."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    figures = [*worst_figure(outputs)]
    figures += [f"{min(answers):.1%} equal answers"] if answers else []
    shown = f"{subject} {verdict(outputs)}: {', '.join(figures)}"
    few = f" ({WHY_FEW[origin]})" if samples < FEWEST_SAMPLES and origin in WHY_FEW else ""
    text = f"{shown} on {samples} sample(s) {origin}".rstrip() + few + "."
    text += f" {right}." if right else ""
    return f"{text} But see the warnings." if has_warnings else text


def worst_figure(outputs: Sequence[OutputAccuracy]) -> Iterator[str]:
    """The SQNR of the worst output; none if all have integers."""
    worst = worst_sqnr_db(outputs)
    if worst is not None:
        is_logits = worst in [output.logits_db for output in outputs]
        yield f"{decibels(worst)} dB{' in the logits' if is_logits else ''}"


def verdict(outputs: Sequence[OutputAccuracy]) -> str:
    """The words for the worst output; empty if no outputs were compared."""
    if not outputs:
        return ""
    answers = [o.top1_agreement for o in outputs if o.top1_agreement is not None]
    worst = worst_sqnr_db(outputs)
    return closeness(math.inf if worst is None else worst, min(answers, default=1.0))


def is_close(words: str) -> bool:
    """Whether a verdict needs no look at layers."""
    return words in [close for _, _, close in CLOSENESS[:2]]


def closeness(sqnr_db: float, agreement: float) -> str:
    """Closeness of two models in words."""
    known = (words for db, same, words in CLOSENESS if sqnr_db >= db and agreement >= same)
    return next(known, FAR)
