"""Losses of classes."""

from __future__ import annotations

from typing import Any

from tests.generators.onnx_models.drawing import Drawing, Value
from tests.generators.onnx_models.operators.family import draws

REDUCTIONS = ("none", "mean", "sum")


def labeled(d: Drawing) -> tuple[list[Value], dict[str, Any]]:
    """Scores, classes, sometimes weights; attributes."""
    x = d.floats(2, 3, 4)
    classes = x.shape[1]
    shape = (x.shape[0], *x.shape[2:])
    operands = [x, d.constant(d.rng.integers(0, classes, shape))]
    if d.chance(0.4):
        operands.append(d.uniform(0.5, 1.5, classes))
    inputs: dict[str, Any] = d.some({"reduction": REDUCTIONS})
    if d.chance(0.3) and classes > 2 and inputs.get("reduction") != "mean":
        inputs["ignore_index"] = d.integer(0, classes - 1)
    return operands, inputs


@draws("NegativeLogLikelihoodLoss")
def likelihood(d: Drawing) -> object:
    operands, inputs = labeled(d)
    return d.node("NegativeLogLikelihoodLoss", *operands, **inputs)


@draws("SoftmaxCrossEntropyLoss")
def cross_entropy(d: Drawing) -> object:
    operands, inputs = labeled(d)
    return d.node("SoftmaxCrossEntropyLoss", *operands, outputs=d.integer(1, 2), **inputs)
