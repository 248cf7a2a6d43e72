"""Plans of compiled programs: their figures, and the plan itself when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantglow.lazy import cached_property

if TYPE_CHECKING:
    from quantglow.runtime.planning import PlannedProgram


@dataclass(frozen=True)
class PlanFigures:
    """Bytes of the arena, the lower bound of any plan, and bytes of the constants."""

    peak_nbytes: int
    lower_bound_nbytes: int
    constant_nbytes: int


@dataclass(frozen=True, eq=False)
class Planning:
    """The figures of a program, and its plan, which is made on demand if the program was read."""

    figures: PlanFigures
    make: Callable[[], PlannedProgram]

    @cached_property
    def planned(self) -> PlannedProgram:
        """The planned program."""
        return self.make()
