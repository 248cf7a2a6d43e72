"""Logits of an ONNX model as further outputs: the values behind a Softmax, a Sigmoid or a choice,
which hide errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
VIEWS = frozenset((*MOVES, "Cast", "DequantizeLinear", "QuantizeLinear"))
"""Operators that keep values, up to their rounding."""

HIDING = frozenset(("ArgMax", "LogSoftmax", "Sigmoid", "Softmax", "TopK"))
"""Operators whose results are probabilities or choices."""

SUFFIX = ":logits"
"""Ending of the names of these outputs."""


def logits_of(model: onnx.ModelProto) -> dict[int, str]:
    """The value with the logits of each output that hides them, by the output's position."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found = ((p, behind(o.name, makers)) for p, o in enumerate(model.graph.output))
    return {position: name for position, name in found if name}


def logits_in(path: Path) -> dict[int, str]:
    """``logits_of`` a file."""
    return logits_of(onnx.load(path))


def behind(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    """The operand of the first operator behind a value, and views of it, that hides errors; empty
    if there is none."""
    maker = makers.get(name)
    while maker is not None and maker.op_type in VIEWS:
        maker = makers.get(maker.input[0])
    if maker is None or maker.op_type not in HIDING:
        return ""
    return behind(maker.input[0], makers) or maker.input[0]


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
