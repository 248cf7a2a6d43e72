"""Accuracy control: layers go back to float until the contract holds.

Layers are ranked by what each alone does to the outputs (no labels needed).  The shortest run of
the ranking that satisfies the contract is found by doubling and bisection, so that the validation
function is called a logarithmic number of times; the best model found so far is never lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quantglow.errors import AccuracyDropError, OptionError

DROP_TYPES = ("absolute", "relative")

Model = TypeVar("Model")


@dataclass(frozen=True)
class Contract(Generic[Model]):
    """How much accuracy may be lost, and how it is measured.

    ``metric`` gives a figure that is better when larger.  A ``relative`` drop is a share of the
    float model's figure.  ``max_minutes`` bounds the search, not a trial under way.
    """

    max_drop: float
    metric: Callable[[Model], float]
    drop_type: str = "absolute"
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        if self.max_drop < 0:
            raise OptionError(f"max_drop must not be negative, got {self.max_drop}")
        if self.drop_type not in DROP_TYPES:
            raise OptionError(f"drop_type must be one of {DROP_TYPES}, got {self.drop_type!r}")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise OptionError(f"max_minutes must be positive, got {self.max_minutes}")

    def drop(self, baseline: float, figure: float) -> float:
        """What a model loses against the float model."""
        lost = baseline - figure
        return lost if self.drop_type == "absolute" else lost / max(abs(baseline), 1e-12)


@dataclass(frozen=True)
class Trial(Generic[Model]):
    """A model with its ``kept`` most sensitive layers in float."""

    model: Model
    kept: int
    drop: float


@dataclass
class Search(Generic[Model]):
    """The search for the fewest float layers.  ``build(names)`` makes a model that keeps them."""

    contract: Contract[Model]
    baseline: float
    ranking: Sequence[str]
    build: Callable[[Sequence[str]], Model]
    deadline: float | None = None
    trials: list[Trial[Model]] = field(default_factory=list)

    def run(self) -> Trial[Model]:
        """The trial that satisfies the contract with the fewest float layers found in time.

        Raises ``AccuracyDropError`` with the best model attached when none does.
        """
        if self.contract.max_minutes is not None:
            self.deadline = time.monotonic() + 60 * self.contract.max_minutes
        below, kept = -1, 0
        while not self.holds(self.trial(kept)):
            if kept >= len(self.ranking) or self.late():
                raise self.failure()
            below, kept = kept, min(max(2 * kept, 1), len(self.ranking))
        while kept - below > 1 and not self.late():
            middle = (below + kept) // 2
            if self.holds(self.trial(middle)):
                kept = middle
            else:
                below = middle
        return min((t for t in self.trials if self.holds(t)), key=lambda t: t.kept)

    def trial(self, kept: int) -> Trial[Model]:
        model = self.build(self.ranking[:kept])
        drop = self.contract.drop(self.baseline, self.contract.metric(model))
        self.trials.append(Trial(model, kept, drop))
        return self.trials[-1]

    def holds(self, trial: Trial[Model]) -> bool:
        return trial.drop <= self.contract.max_drop

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def failure(self) -> AccuracyDropError:
        best = min(self.trials, key=lambda t: t.drop)
        reason = "the time is up" if self.late() else "even with every layer in float"
        return AccuracyDropError(
            f"the {self.contract.drop_type} drop of {best.drop:.4g} with {best.kept} layer(s) in "
            f"float exceeds max_drop={self.contract.max_drop:.4g} ({reason}). Remedy: allow a "
            "larger drop or more minutes, or calibrate on more samples; the best model is the "
            "error's `best`.",
            best.model,
        )
