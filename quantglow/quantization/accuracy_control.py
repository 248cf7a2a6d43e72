"""Accuracy control: step by step out of int8 until the contract holds.

The steps (a value to int16, an operator to float) come in the order of what they are worth, see
``ladder``.  The shortest run of them that satisfies the contract is found by doubling and
bisection, so that the validation function is called a logarithmic number of times; the best model
found so far is never lost, neither to a time limit nor to Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from quantglow.errors import AccuracyDropError, OptionError
from quantglow.profiling.progress import shown

DROP_TYPES = ("absolute", "relative")

Model = TypeVar("Model")
Rise = TypeVar("Rise")
"""A step to higher precision."""


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
        if not self.max_drop >= 0:
            raise OptionError(f"max_drop must not be negative, got {self.max_drop}")
        if self.drop_type not in DROP_TYPES:
            raise OptionError(f"drop_type must be one of {DROP_TYPES}, got {self.drop_type!r}")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise OptionError(f"max_minutes must be positive, got {self.max_minutes}")

    def drop(self, baseline: float, figure: float) -> float:
        """What a model loses against the float model."""
        lost = baseline - figure
        return lost if self.drop_type == "absolute" else lost / max(abs(baseline), 1e-12)


@dataclass(frozen=True)
class Trial(Generic[Model]):
    """A model after the first ``count`` steps."""

    model: Model
    count: int
    drop: float


@dataclass
class Search(Generic[Model, Rise]):
    """The search for the fewest steps.  ``build(steps)`` makes a model; ``rank`` gives all steps,
    best first, and is asked only if plain int8 does not do.
    """

    contract: Contract[Model]
    baseline: float
    rank: Callable[[], Sequence[Rise]]
    build: Callable[[Sequence[Rise]], Model]
    deadline: float | None = None
    interrupted: bool = False
    trials: list[Trial[Model]] = field(default_factory=list)

    def run(self, progress: bool | str = False) -> Trial[Model]:
        """The trial that satisfies the contract with the fewest steps, of those tried in time.

        Raises ``AccuracyDropError`` with the best model attached when none does.
        """
        if self.contract.max_minutes is not None and self.deadline is None:
            self.deadline = time.monotonic() + 60 * self.contract.max_minutes
        try:
            for _ in shown(self._trials(), "Accuracy control", progress):
                pass
        except KeyboardInterrupt:
            if not self.trials:
                raise
            self.interrupted = True
        holding = [trial for trial in self.trials if self.holds(trial)]
        if not holding:
            raise self.failure()
        return min(holding, key=lambda t: t.count)

    def steps_of(self, trial: Trial[Model]) -> Sequence[Rise]:
        """The steps that a trial took."""
        return self.ranking[: trial.count] if trial.count else ()

    @cached_property
    def ranking(self) -> Sequence[Rise]:
        """All steps, best first."""
        return self.rank()

    def _trials(self) -> Iterator[Trial[Model]]:
        below, count = -1, 0
        while True:
            yield (trial := self.trial(count))
            if self.holds(trial):
                break
            if self.late() or count >= len(self.ranking):
                return
            below, count = count, min(max(2 * count, 1), len(self.ranking))
        while count - below > 1 and not self.late():
            middle = (below + count) // 2
            yield (trial := self.trial(middle))
            below, count = (below, middle) if self.holds(trial) else (middle, count)

    def trial(self, count: int) -> Trial[Model]:
        """The model after ``count`` steps, measured."""
        model = self.build(self.ranking[:count] if count else ())
        drop = self.contract.drop(self.baseline, self.contract.metric(model))
        self.trials.append(Trial(model, count, drop))
        return self.trials[-1]

    def holds(self, trial: Trial[Model]) -> bool:
        """Whether a trial satisfies the contract."""
        return trial.drop <= self.contract.max_drop

    def late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def failure(self) -> AccuracyDropError:
        """What to raise if no trial satisfies the contract."""
        best = min(self.trials, key=lambda t: t.drop)
        reason = "interrupted" if self.interrupted else "even with every operator in float"
        reason = "the time is up" if self.late() and not self.interrupted else reason
        return AccuracyDropError(
            f"the {self.contract.drop_type} drop of {best.drop:.4g} after {best.count} step(s) to "
            f"int16 and float exceeds max_drop={self.contract.max_drop:.4g} ({reason}). Remedy: "
            "allow a larger drop or more minutes, or calibrate on more samples; the best model is "
            "the error's `best`.",
            best.model,
        )
