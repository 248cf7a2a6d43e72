"""Accuracy control: search for the fewest precision steps out of int8 under a contract.

A step stores the values of a group in int16, or computes an operator in float.  Its worth is the
measured error that it removes from the outputs for each estimated second that it adds (see
``search.time_budget``), so the order is the same on every machine.  Before an operator becomes
float its values become int16, if their rounding is a part of its error.

The steps come in the order of their worth.  The shortest run of them that satisfies the contract is
found by doubling and bisection.  Then steps that it does not need are left out again, the least
worthwhile first, many at once if the contract still holds, else halves of them (delta debugging:
Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002).  So the validation
function is called seldom; the best model so far is lost neither to a time limit nor to Ctrl-C (see
``support.processes.interrupts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

from quantglow.ir.graph.node import Node
from quantglow.profiling import Profile
from quantglow.profiling.samples.feeds import Feeds
from quantglow.quantization.options import QuantizationConfig
from quantglow.quantization.plan.int16 import (
    int16_ineligibility,
    is_int16,
    ranges_for_int16,
    with_int16,
)
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.rounding_sensitivity import (
    rounding_sensitivities,
    stored_members,
)
from quantglow.quantization.search.time_budget import float_seconds, int16_candidates, int16_seconds
from quantglow.support.arguments import brief, choice, number, positive
from quantglow.support.classes import cached_property
from quantglow.support.errors import AccuracyDropError, OptionError
from quantglow.support.processes.interrupts import NEVER, Deadline, TimeUp, is_interrupted
from quantglow.support.progress import show

DropType = Literal["absolute", "relative"]
DROP_TYPES: tuple[DropType, ...] = get_args(DropType)

MAX_OMISSIONS = 100
"""Maximum number of models that are made to leave steps out: a bound on time that is the same on
any machine."""

INTERRUPTED, LATE = "interrupted", "the time is up"

Model = TypeVar("Model")
Override = TypeVar("Override")
"""A step to higher precision."""

INT16, FLOAT = "int16", "float"
MIN_SECONDS = 1e-9
MIN_ERROR_RATIO = 0.01
"""Minimum ratio of the error of a value to that of an operator next to it from which the value
becomes int16 before the operator becomes float."""


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
        result: Any = self.metric(model)
        try:
            number = float(result)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise OptionError(
                f"validation_fn gave {result!r}, which cannot be compared. Remedy: return one "
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
class AccuracySearch(Generic[Model, Override]):
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
            for _ in show(self.each_trial(), "Accuracy control", progress):
                pass
        except TimeUp:
            self.cut_short = INTERRUPTED if is_interrupted() else LATE
            self.deadline.ends("accuracy control")
        if self.best_trial is None:
            raise self.failure()
        return self.best_trial

    @property
    def best_trial(self) -> Trial[Override] | None:
        """The trial with the fewest steps of those that satisfy the contract."""
        holding = (trial for trial in self.trials if self.holds(trial))
        return min(holding, key=lambda trial: trial.count, default=None)

    @cached_property
    def ranking(self) -> Sequence[Override]:
        """All steps, best first.  Ranking takes half of the time at most; the rest is for trials.

        Raises ``TimeUp``.
        """
        overrides = self.rank(self.deadline.halfway)
        self.deadline.check()
        return overrides

    def each_trial(self) -> Iterator[Trial[Override]]:
        """The models that are tried, one after the other, until the contract holds with little."""
        yield from self._shortest_run()
        if (shortest := self.best_trial) is not None:
            yield from self._omissions(shortest)

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

    def _omissions(self, shortest: Trial[Override]) -> Iterator[Trial[Override]]:
        """Leave out parts of the steps.  If the contract breaks, try each half of the part, down to
        single steps, which are needed.
        """
        trials_by_steps = {trial.steps: trial for trial in self.trials}
        most = len(self.trials) + MAX_OMISSIONS
        waiting = [shortest.steps[::-1]]
        while waiting and len(self.trials) < most:
            self.deadline.check()
            left_out = waiting.pop()
            steps = tuple(step for step in shortest.steps if step not in left_out)
            if steps not in trials_by_steps:
                yield trials_by_steps.setdefault(steps, self.trial(steps))
            if self.holds(trials_by_steps[steps]):
                shortest = trials_by_steps[steps]
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
        elif self.best_trial is None and all(trial.drop < other.drop for other in self.trials):
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


@dataclass(frozen=True)
class PrecisionStep:
    """A change of precision.  ``name``: of a value (the first stored one of its group) or of an
    operator; ``error``: the error of the outputs over their power that the step removes;
    ``seconds``: the time that it adds.
    """

    name: str
    precision: str
    error: float
    seconds: float

    @property
    def worth(self) -> float:
        """Error removed for each second."""
        return self.error / max(self.seconds, MIN_SECONDS)

    def __str__(self) -> str:
        return f"{self.name} to {self.precision}"


@dataclass(frozen=True)
class PrecisionOverrides:
    """Names of values that become int16 if they can, and of operators that become float."""

    to_int16: tuple[str, ...] = ()
    to_float: tuple[str, ...] = ()

    @staticmethod
    def by(steps: Iterable[PrecisionStep]) -> PrecisionOverrides:
        """The overrides of all steps together."""
        steps = list(steps)
        return PrecisionOverrides(
            tuple(s.name for s in steps if s.precision == INT16),
            tuple(s.name for s in steps if s.precision == FLOAT),
        )

    def apply_to(self, plan: Plan, profile: Profile, config: QuantizationConfig) -> Plan:
        """The plan with the values in int16 that are still integers."""
        ranges = ranges_for_int16(plan.graph, profile, config) if self.to_int16 else {}
        for name in self.to_int16:
            node = plan.graph.by_name(name)
            if not int16_ineligibility(plan, node):
                plan = with_int16(plan, ranges, [node])
        return plan


NO_OVERRIDES = PrecisionOverrides()


def int16_steps(
    plan: Plan, samples: Sequence[Feeds], deadline: Deadline = NEVER
) -> list[PrecisionStep]:
    """A step for each group of int8 values whose rounding causes an error in the outputs, as far as
    that is measured until the deadline.
    """
    roots = [root for root in int16_candidates(plan) if not is_int16(plan, root)]
    errors = rounding_sensitivities(plan, roots, samples, deadline=deadline)
    stored = {root: stored_members(plan, root) for root in roots}
    return [
        PrecisionStep(stored[root][0].name, INT16, error, int16_seconds(plan, stored[root]))
        for root, error in errors.items()
        if error
    ]


def float_steps(plan: Plan, errors: Mapping[str, float]) -> list[PrecisionStep]:
    """A step for each operator that is not float; ``errors``: of each by itself, if known."""
    return [
        PrecisionStep(node.name, FLOAT, errors.get(node.name, 0.0), float_seconds(plan, node))
        for node in plan.graph.compute_nodes()
        if plan.is_int8(node)
    ]


def rank_steps(
    plan: Plan, wide: Sequence[PrecisionStep], real: Sequence[PrecisionStep]
) -> list[PrecisionStep]:
    """All steps, the most worthwhile first, int16 before float."""
    waiting = {plan.groups[plan.graph.by_name(step.name)]: step for step in wide}
    order: list[PrecisionStep] = []
    for step in sorted([*wide, *real], key=lambda s: -s.worth):
        node = plan.graph.by_name(step.name)
        if step.precision == FLOAT:
            for root in _groups_at(plan, node):
                if root in waiting and waiting[root].error >= MIN_ERROR_RATIO * step.error:
                    order.append(waiting.pop(root))
            order.append(step)
        elif waiting.pop(plan.groups[node], None):
            order.append(step)
    return order


def _groups_at(plan: Plan, node: Node) -> Iterator[Node]:
    """The groups of the values that an operator reads and gives."""
    for value in (*node.operands, node):
        if value in plan.groups:
            yield plan.groups[value]
