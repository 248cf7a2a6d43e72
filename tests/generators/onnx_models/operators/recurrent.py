"""Recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generators.onnx_models.drawing import Drawing, Value
from tests.generators.onnx_models.operators.family import draws

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {
    "RNN": (["Tanh"], ["Relu"], ["Sigmoid"]),
    "GRU": (["Sigmoid", "Tanh"], ["Sigmoid", "Relu"]),
    "LSTM": (["Sigmoid", "Tanh", "Tanh"], ["Sigmoid", "Tanh", "Relu"]),
}
MOST_STEPS = 9


@draws(*GATES, often=1.5)
def recurrent(d: Drawing) -> object:
    op = d.choose(list(GATES))
    x = d.floats(3)
    if x.shape[0] > MOST_STEPS:
        x = d.inner("Slice", x, starts=[0], ends=[MOST_STEPS], axes=[0])
    hidden, direction = d.integer(1, 5), d.choose(("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    outputs = [[True, True], [True], [False, True]][d.integer(0, 2)]
    if op == "LSTM" and d.chance(0.4):
        outputs = [True, True, True]
    inputs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if d.chance(0.3):
        inputs["activations"] = d.choose(ACTIVATIONS[op]) * directions
    if op == "GRU":
        inputs |= d.some({"linear_before_reset": (0, 1)})
    tensors = operands(d, op, x, hidden, directions)
    return d.node(op, *tensors, outputs=outputs, **inputs)


def operands(d: Drawing, op: str, x: Value, hidden: int, directions: int) -> list[Value | None]:
    """Weights, and the optional operands, each present or not."""
    rows, batch = GATES[op] * hidden, x.shape[1]

    def maybe(*shape: int) -> Value | None:
        return d.normal(*shape) if d.chance(0.4) else None

    lengths = d.rng.integers(0, x.shape[0] + 1, batch).astype(np.int32)
    tensors = [
        x,
        d.weights(directions, rows, x.shape[2]),
        d.weights(directions, rows, hidden),
        maybe(directions, 2 * rows),
        d.constant(lengths) if d.chance(0.2) else None,
        maybe(directions, batch, hidden),
    ]
    if op == "LSTM":
        tensors += [maybe(directions, batch, hidden), maybe(directions, 3 * hidden)]
    return tensors
