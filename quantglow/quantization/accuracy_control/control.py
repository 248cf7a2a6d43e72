"""Accuracy control: step by step out of int8 until the contract holds.

The steps (a value to int16, an operator to float) come in the order of their worth, see
``precision_steps``.  The shortest run of them that satisfies the contract is found by doubling and
bisection.  Then steps that it does not need are left out again, the least worthwhile first, many at
once if the contract still holds, else halves of them (delta debugging: Zeller and Hildebrandt,
Simplifying and isolating failure-inducing input, 2002).  So the validation function is called
seldom; the best model so far is lost neither to a time limit nor to Ctrl-C (see ``interrupts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from quantglow.arguments import brief, choice, number, positive
from quantglow.errors import AccuracyDropError, OptionError
from quantglow.lazy import cached_property
from quantglow.processes.deadline import NEVER, Deadline, TimeUp
from quantglow.processes.interrupts import is_interrupted
from quantglow.profiling.progress import shown

DROP_TYPES = ("absolute", "relative")

MAX_OMISSIONS = 100
"""Maximum number of models that are made to leave steps out: a bound on time that is the same on
any machine."""

INTERRUPTED, LATE = "interrupted", "the time is up"

Model = TypeVar("Model")
Override = TypeVar("Override")
"""A step to higher precision."""


@dataclass(frozen=True)
class Contract(Generic[Model]):
    """The accuracy that may be lost, and how it is measured.

    ``metric`` gives a figure that is better when larger.  A ``relative`` drop is a share of the
    float model's figure.  ``max_minutes`` bounds the search; in a trial under way it ends recovery.
    """

    max_drop: float
    metric: Callable[[Model], float]
    drop_type: str = "absolute"
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        choice("drop_type", self.drop_type, DROP_TYPES)
        object.__setattr__(self, "max_drop", number("max_drop", self.max_drop))
        if self.max_drop < 0:
            raise OptionError(f"max_drop must not be negative, got {self.max_drop}")
        if self.max_minutes is not None:
            object.__setattr__(self, "max_minutes", positive("max_minutes", self.max_minutes))
        if not callable(self.metric):
            raise OptionError(
                f"validation_fn must be a function of a model, got {brief(self.metric)}"
            )

    def figure(self, model: Model) -> float:
        """The metric of a model.  Raises ``OptionError`` unless it is a finite number."""
        found: Any = self.metric(model)
        try:
            number = float(found)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise OptionError(
                f"validation_fn gave {found!r}, which cannot be compared. Remedy: return one "
                "finite number that is larger for a better model, as an accuracy."
            )
        return number

    def drop(self, baseline: float, figure: float) -> float:
        """The loss of a model against the float model."""
        lost = baseline - figure
        return lost if self.drop_type == "absolute" else lost / max(abs(baseline), 1e-12)


@dataclass(frozen=True)
class Trial(Generic[Override]):
    """The drop of the model after these steps."""

    steps: tuple[Override, ...]
    drop: float

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.steps)


@dataclass
class Search(Generic[Model, Override]):
    """The search for the fewest steps.

    ``build(steps)`` makes a model.  ``rank`` gives all steps, best first, as far as their order is
    known at the deadline; it is called only if plain int8 breaks the contract.  ``closest`` is the
    model with the least drop as long as none holds.  ``cut_short``: the cause that ended the search
    early.
    """

    contract: Contract[Model]
    baseline: float
    rank: Callable[[Deadline], Sequence[Override]]
    build: Callable[[Sequence[Override]], Model]
    deadline: Deadline = NEVER
    cut_short: str = ""
    trials: list[Trial[Override]] = field(default_factory=list)
    closest: Model | None = None

    def run(self, progress: bool | str = False) -> Trial[Override]:
        """The trial that satisfies the contract with the fewest steps, of those tried in time.

        Raises ``AccuracyDropError`` with the best model attached when none does.
        """
        self.deadline = Deadline.after(self.contract.max_minutes)
        try:
            for _ in shown(self.each_trial(), "Accuracy control", progress):
                pass
        except TimeUp:
            self.cut_short = INTERRUPTED if is_interrupted() else LATE
            self.deadline.ends("accuracy control")
        if self.found is None:
            raise self.failure()
        return self.found

    @property
    def found(self) -> Trial[Override] | None:
        """The trial with the fewest steps of those that satisfy the contract."""
        holding = (trial for trial in self.trials if self.holds(trial))
        return min(holding, key=lambda trial: trial.count, default=None)

    @cached_property
    def ranking(self) -> Sequence[Override]:
        """All steps, best first.  Ranking takes half of the time at most; the rest is for trials.

        Raises ``TimeUp``.
        """
        found = self.rank(self.deadline.halfway)
        self.deadline.check()
        return found

    def each_trial(self) -> Iterator[Trial[Override]]:
        """The models that are tried, one after the other, until the contract holds with little."""
        yield from self._shortest_run()
        if (found := self.found) is not None:
            yield from self._omissions(found)

    def _shortest_run(self) -> Iterator[Trial[Override]]:
        """Doubling, then bisection."""
        below, count = -1, 0
        while True:
            yield (trial := self.first(count))
            if self.holds(trial):
                break
            self.deadline.check()
            if count >= len(self.ranking):
                return
            below, count = count, min(max(2 * count, 1), len(self.ranking))
        while count - below > 1:
            self.deadline.check()
            middle = (below + count) // 2
            yield (trial := self.first(middle))
            below, count = (below, middle) if self.holds(trial) else (middle, count)

    def _omissions(self, found: Trial[Override]) -> Iterator[Trial[Override]]:
        """Leave out parts of the steps.  If the contract breaks, try each half of the part, down to
        single steps, which are needed.
        """
        known = {trial.steps: trial for trial in self.trials}
        most = len(self.trials) + MAX_OMISSIONS
        waiting = [found.steps[::-1]]
        while waiting and len(self.trials) < most:
            self.deadline.check()
            left_out = waiting.pop()
            steps = tuple(step for step in found.steps if step not in left_out)
            if steps not in known:
                yield known.setdefault(steps, self.trial(steps))
            if self.holds(known[steps]):
                found = known[steps]
            elif len(left_out) > 1:
                half = len(left_out) // 2
                waiting += [left_out[half:], left_out[:half]]

    def first(self, count: int) -> Trial[Override]:
        """The model after the first ``count`` steps, measured."""
        return self.trial(tuple(self.ranking[:count]) if count else ())

    def trial(self, steps: tuple[Override, ...]) -> Trial[Override]:
        """The model after these steps, measured."""
        model = self.build(steps)
        trial = Trial(steps, self.contract.drop(self.baseline, self.contract.figure(model)))
        if self.holds(trial):
            self.closest = None
        elif self.found is None and all(trial.drop < other.drop for other in self.trials):
            self.closest = model
        self.trials.append(trial)
        return trial

    def holds(self, trial: Trial[Override]) -> bool:
        """Whether a trial satisfies the contract."""
        return trial.drop <= self.contract.max_drop

    def failure(self) -> AccuracyDropError:
        """The error to raise if no trial satisfies the contract."""
        best = min(self.trials, key=lambda t: t.drop)
        reason = self.cut_short or "even with every operator in float"
        return AccuracyDropError(
            f"the {self.contract.drop_type} drop of {best.drop:.4g} after {best.count} step(s) to "
            f"int16 and float exceeds max_drop={self.contract.max_drop:.4g} ({reason}). Remedy: "
            "allow a larger drop or more minutes, or calibrate on more samples; the best model is "
            "the error's `best`.",
            self.closest,
        )
