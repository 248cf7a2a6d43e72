"""Plans of general programs: what is known of one before there is code, as numbers to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from quantglow.ir.symbolic.expression import Values
from quantglow.ir.symbolic.guards import Conditions, Guards
from quantglow.ir.symbolic.straight_line import StraightLine
from quantglow.ir.types import DType, TensorType
from quantglow.memory.planner import ArenaOrder
from quantglow.memory.plans import PlanFigures, Traffic
from quantglow.support.classes import Concise

Ends = tuple[tuple[TensorType, ...], tuple[TensorType, ...]]
"""Types of the inputs and of the outputs."""

EndSizes = tuple[tuple[DType, tuple[int, ...]], ...]
"""For each input or output its element type, and the positions of the sizes of its shape."""


@dataclass(frozen=True, eq=False, repr=False)
class GeneralPlan(Concise):
    """The guards of a program, its memory and its ends; sizes are positions among ``numbers``.

    weights   bytes of all constants
    moved     of all other values
    buffers   of each buffer of the arena, which lie in this ``order``
    figures   of the memory at the hints
    """

    guards: Guards | Conditions
    numbers: StraightLine
    weights: int
    moved: int
    buffers: tuple[int, ...]
    order: ArenaOrder
    inputs: EndSizes
    outputs: EndSizes
    figures: PlanFigures

    def traffic_at(self, values: Values) -> Traffic:
        """The traffic of a run at these sizes."""
        numbers = self.numbers.always_at(values)
        peak = self.order.offsets([numbers[at] for at in self.buffers])[1]
        return Traffic(self.weights, numbers[self.moved], peak)

    def ends_at(self, values: Values) -> Ends:
        """The types of inputs and outputs, without their scales."""
        numbers = self.numbers.always_at(values)
        inputs, outputs = (
            tuple(TensorType(kind, tuple(numbers[at] for at in shape)) for kind, shape in ends)
            for ends in (self.inputs, self.outputs)
        )
        return inputs, outputs

    def to_json(self) -> dict[str, Any]:
        """The plan in types that ``json`` writes."""
        guards = self.guards.conditions() if isinstance(self.guards, Guards) else self.guards
        return {
            "conditions": guards.to_json(),
            "numbers": self.numbers.to_json(),
            "weights": self.weights,
            "moved": self.moved,
            "buffers": self.buffers,
            "below": self.order.below,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "figures": astuple(self.figures),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GeneralPlan:
        """The plan from the result of ``to_json``.  Raises ``KeyError``, ``TypeError`` or
        ``ValueError``."""
        numbers = StraightLine.from_json(data["numbers"])
        size = len(numbers.results)
        buffers = _positions_from(data["buffers"], size)
        below = tuple(_positions_from(b, place) for place, b in enumerate(data["below"]))
        if len(below) != len(buffers):
            raise ValueError("the order has other buffers than the plan")
        return GeneralPlan(
            conditions_from(data["conditions"]),
            numbers,
            int(data["weights"]),
            _positions_from([data["moved"]], size)[0],
            buffers,
            ArenaOrder(below),
            _ends_from(data["inputs"], size),
            _ends_from(data["outputs"], size),
            PlanFigures(*map(int, data["figures"])),
        )


def conditions_from(data: Any) -> Conditions:
    """The result of ``Conditions.to_json``.  Raises ``TypeError`` or ``ValueError``."""
    test, texts = data
    return Conditions(StraightLine.from_json(test), tuple(map(str, texts)))


def _positions_from(data: Any, size: int) -> tuple[int, ...]:
    """Positions below a size.  Raises ``TypeError`` or ``ValueError``."""
    positions = tuple(data)
    if not all(type(at) is int and 0 <= at < size for at in positions):
        raise ValueError(f"{str(positions)[:60]} are no positions below {size}")
    return positions


def _ends_from(data: Any, size: int) -> EndSizes:
    return tuple((DType(kind), _positions_from(shape, size)) for kind, shape in data)
