"""Models prepared for onnxruntime's quantizer: fixed shapes, an opset, logits as outputs.

Scales per channel need an opset.  The logits are the values behind a Softmax, a Sigmoid or a
choice, which hide errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import onnx
from onnx.version_converter import convert_version

from quantglow.importer.onnx.reading.light_models import whole
from quantglow.importer.onnx.reading.loading import load_model
from quantglow.importer.onnx.reading.proto import opset_versions
from quantglow.support.errors import ModelError

PER_CHANNEL_OPSET = 13
"""DequantizeLinear has an axis from here on."""

MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
ROUNDINGS = ("Cast", "Convert", "DequantizeLinear", "FakeQuantize", "QuantizeLinear")
VIEWS = frozenset((*MOVES, *ROUNDINGS))
"""Operators of ONNX and OpenVINO that keep values, up to their rounding."""

HIDING = frozenset(("ArgMax", "LogSoftmax", "Sigmoid", "SoftMax", "Softmax", "TopK"))
"""Operators whose results are probabilities or choices."""

Value = TypeVar("Value")

SUFFIX = ":logits"
"""Ending of the names of outputs that are logits."""


def quantizer_input(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]],
) -> onnx.ModelProto:
    """A copy with the given input shapes, at least opset 13, and no weights among its inputs.

    Raises ``ModelError``.
    """
    proto = _without_weight_inputs(whole(*load_model(model)))
    for value in proto.graph.input:
        if value.name in input_shapes:
            _fix_shape(value, input_shapes[value.name])
    if opset_versions(proto).get("", 1) >= PER_CHANNEL_OPSET:
        return proto
    try:
        return convert_version(proto, PER_CHANNEL_OPSET)
    except RuntimeError as error:
        raise ModelError(f"cannot convert to opset {PER_CHANNEL_OPSET}: {error}") from error


def _without_weight_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without initializers among its inputs: the quantizer would ask for their feeds."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    return model


def _fix_shape(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size


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


def _logit_values(model: onnx.ModelProto) -> dict[int, str]:
    """The value with the logits of each output that hides them, by the output's position."""
    steps = {o: (n.op_type, n.input[0]) for n in model.graph.node if n.input for o in n.output}
    values = ((p, behind(o.name, steps.get)) for p, o in enumerate(model.graph.output))
    return {position: name for position, name in values if name is not None}


def logits_in(path: Path) -> dict[int, str]:
    """``_logit_values`` a file."""
    return _logit_values(onnx.load(path))


def with_logits(path: Path) -> Path:
    """A file beside a model whose last outputs are the logits of those that hide them."""
    model = onnx.load(path)
    for position, name in _logit_values(model).items():
        output = model.graph.output[position].name + SUFFIX
        model.graph.node.append(onnx.helper.make_node("Identity", [name], [output]))
        model.graph.output.append(onnx.ValueInfoProto(name=output))
    target = path.with_name(f"logits-{path.name}")
    target.write_bytes(model.SerializeToString())
    return target
