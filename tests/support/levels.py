"""Levels between which programs choose, from the table of levels."""

from __future__ import annotations

from quantglow.codegen.llvm.targets import CHOICES, level_choice, runs_here


def needs_of_levels_here() -> dict[str, tuple[str, ...]]:
    """The levels that run here, best first, each with the features that it needs; those that the
    operating system has to permit are left out."""
    choices = map(level_choice, CHOICES)
    pairs = [
        pair for targets, choice in choices for pair in zip(targets, choice.needs, strict=True)
    ]
    return {target.name: needs for target, needs in pairs if runs_here(target.name)}


LEVELS_HERE = tuple(needs_of_levels_here())
