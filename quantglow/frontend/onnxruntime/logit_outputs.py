"""Logits of an ONNX model as further outputs: the values behind a Softmax, a Sigmoid or a choice,
which hide errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import onnx

MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
ROUNDINGS = ("Cast", "Convert", "DequantizeLinear", "FakeQuantize", "QuantizeLinear")
VIEWS = frozenset((*MOVES, *ROUNDINGS))
"""Operators of ONNX and OpenVINO that keep values, up to their rounding."""

HIDING = frozenset(("ArgMax", "LogSoftmax", "Sigmoid", "SoftMax", "Softmax", "TopK"))
"""Operators whose results are probabilities or choices."""

Value = TypeVar("Value")

SUFFIX = ":logits"
"""Ending of the names of these outputs."""


def behind(value: Value, maker: Callable[[Value], tuple[str, Value] | None]) -> Value | None:
    """The operand of the first operator behind a value, and views of it, that hides errors; None
    if there is none.  ``maker``: the operator of a value and its first operand, None for inputs."""
    step = maker(value)
    while step is not None and step[0] in VIEWS:
        step = maker(step[1])
    if step is None or step[0] not in HIDING:
        return None
    deeper = behind(step[1], maker)
    return step[1] if deeper is None else deeper


def logits_of(model: onnx.ModelProto) -> dict[int, str]:
    """The value with the logits of each output that hides them, by the output's position."""
    steps = {o: (n.op_type, n.input[0]) for n in model.graph.node if n.input for o in n.output}
    values = ((p, behind(o.name, steps.get)) for p, o in enumerate(model.graph.output))
    return {position: name for position, name in values if name is not None}


def logits_in(path: Path) -> dict[int, str]:
    """``logits_of`` a file."""
    return logits_of(onnx.load(path))


def with_logits(path: Path) -> Path:
    """A file beside a model whose last outputs are the logits of those that hide them."""
    model = onnx.load(path)
    for position, name in logits_of(model).items():
        output = model.graph.output[position].name + SUFFIX
        model.graph.node.append(onnx.helper.make_node("Identity", [name], [output]))
        model.graph.output.append(onnx.ValueInfoProto(name=output))
    target = path.with_name(f"logits-{path.name}")
    target.write_bytes(model.SerializeToString())
    return target
