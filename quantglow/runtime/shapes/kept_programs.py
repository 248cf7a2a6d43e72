"""The last used programs of a model, and the one that always stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from quantglow.graph.case import Case
from quantglow.runtime.build import Build
from quantglow.runtime.shapes.specialisations import Served


@dataclass(eq=False)
class KeptPrograms:
    """Programs by their cases, the last used one last; used under the lock of the owner.

    ``first`` is the first program that serves one case only, and always stays; ``opened``: the only
    case whose program may be that, for a model whose file has the graph of a case.
    """

    most_values: int
    most_programs: int
    most_nbytes: int
    opened: Case | None = None
    first: Served | None = None
    programs: dict[Case, Served] = field(default_factory=dict)
    _made: Counter[Case] = field(default_factory=Counter)

    def used(self, case: Case) -> tuple[Case, Served | None]:
        """The case that has a program for this one, and that, if it is there."""
        if case not in self.programs and self._made[case.whatever_values] >= self.most_values:
            case = case.whatever_values
        found = self.programs.get(case)
        if found is not None:
            self.programs[case] = self.programs.pop(case)  # the last one
        return case, found

    def count(self, case: Case) -> None:
        """Count a program that was made for the values of a case."""
        if case.values:
            self._made[case.whatever_values] += 1

    def add(self, case: Case, found: Served) -> list[Case]:
        """Keep a program; the cases whose programs are dropped for it."""
        if self.first is None and self.opened in (None, case) and not found.is_general:
            self.first = found
        self.programs.pop(case, None)
        self.programs[case] = found  # the last one
        total = sum(nbytes_of(each.build) for each in self.programs.values())
        dropped = []
        for old in list(self.programs):
            if len(self.programs) <= self.most_programs and total <= self.most_nbytes:
                break
            if old != case and self.programs[old] is not self.first:
                total -= nbytes_of(self.programs.pop(old).build)
                dropped.append(old)
        return dropped


def nbytes_of(build: Build) -> int:
    """Size in bytes of a program beside the constants that it shares; the programs of the parts of
    a model are kept and counted apart."""
    return 0 if build.is_part else sum(plan.figures.peak_nbytes for plan in build.plans)
