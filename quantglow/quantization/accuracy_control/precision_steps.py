"""Precision steps: the steps by which accuracy control takes a network out of int8, best first.

A step stores the values of a group in int16, or computes an operator in float.  Its worth is the
measured error that it removes from the outputs for each estimated second that it adds (see
``costs``), so the order is the same on every machine.  Before an operator becomes float its values
become int16, if their rounding is a part of its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quantglow.graph.node import Node
from quantglow.options import QuantizationConfig
from quantglow.processes.deadline import NEVER, Deadline
from quantglow.profiling import Profile
from quantglow.profiling.data import Feeds
from quantglow.quantization.costs import float_seconds, int16_seconds
from quantglow.quantization.plan.int16 import (
    int16_ineligibility,
    is_int16,
    ranges_for_int16,
    with_int16,
)
from quantglow.quantization.plan.plan import Plan
from quantglow.quantization.search.choose_int16 import int16_candidates
from quantglow.quantization.search.rounding_sensitivity import (
    rounding_sensitivities,
    stored_members,
)

INT16, FLOAT = "int16", "float"
MIN_SECONDS = 1e-9
MIN_ERROR_RATIO = 0.01
"""Minimum ratio of the error of a value to that of an operator next to it from which the value
becomes int16 before the operator becomes float."""


@dataclass(frozen=True)
class Step:
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
    def by(steps: Iterable[Step]) -> PrecisionOverrides:
        """The overrides of all steps together."""
        steps = list(steps)
        return PrecisionOverrides(
            tuple(s.name for s in steps if s.precision == INT16),
            tuple(s.name for s in steps if s.precision == FLOAT),
        )

    def applied_to(self, plan: Plan, profile: Profile, config: QuantizationConfig) -> Plan:
        """The plan with the values in int16 that are still integers."""
        ranges = ranges_for_int16(plan.graph, profile, config) if self.to_int16 else {}
        for name in self.to_int16:
            node = plan.graph.by_name(name)
            if not int16_ineligibility(plan, node):
                plan = with_int16(plan, ranges, [node])
        return plan


NO_OVERRIDES = PrecisionOverrides()


def int16_steps(plan: Plan, samples: Sequence[Feeds], deadline: Deadline = NEVER) -> list[Step]:
    """A step for each group of int8 values whose rounding causes an error in the outputs, as far as
    that is measured until the deadline.
    """
    roots = [root for root in int16_candidates(plan) if not is_int16(plan, root)]
    errors = rounding_sensitivities(plan, roots, samples, deadline=deadline)
    stored = {root: stored_members(plan, root) for root in roots}
    return [
        Step(stored[root][0].name, INT16, error, int16_seconds(plan, stored[root]))
        for root, error in errors.items()
        if error
    ]


def float_steps(plan: Plan, errors: Mapping[str, float]) -> list[Step]:
    """A step for each operator that is not float; ``errors``: of each by itself, if known."""
    return [
        Step(node.name, FLOAT, errors.get(node.name, 0.0), float_seconds(plan, node))
        for node in plan.graph.compute_nodes()
        if plan.is_int8(node)
    ]


def ranked(plan: Plan, wide: Sequence[Step], real: Sequence[Step]) -> list[Step]:
    """All steps, the most worthwhile first, int16 before float."""
    waiting = {plan.groups[plan.graph.by_name(step.name)]: step for step in wide}
    order: list[Step] = []
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
