"""Families of operators that are drawn alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.drawing import Drawing

Draw = Callable[[Drawing], object]


@dataclass(frozen=True)
class Family:
    """``draw`` adds one of ``operators``; ``weight`` is how often it is tried.

    Those of quantized tensors are only tried in some graphs, for quantization takes the others.
    """

    operators: tuple[str, ...]
    draw: Draw
    weight: float
    is_quantized: bool


FAMILIES: list[Family] = []


def draws(
    *operators: str, often: float = 1.0, is_quantized: bool = False
) -> Callable[[Draw], Draw]:
    """Register a family; each of its operators is tried ``often`` times as much as others."""

    def register(draw: Draw) -> Draw:
        FAMILIES.append(Family(operators, draw, often * len(operators), is_quantized))
        return draw

    return register
