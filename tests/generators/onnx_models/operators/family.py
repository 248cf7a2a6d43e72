"""Families of operators that are drawn in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.generators.onnx_models.drawing import Drawing

Draw = Callable[[Drawing], object]


@dataclass(frozen=True)
class Family:
    """A function ``draw`` that adds one of ``operators``; ``weight`` is how often it is tried.

    Families of quantized tensors are only tried in some graphs, because quantization refuses models
    that come quantized.
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
