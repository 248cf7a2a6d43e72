"""A model prepared for onnxruntime's quantizer: fixed shapes, an opset with per-channel scales."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx
from onnx.version_converter import convert_version

from quantglow.errors import ModelError
from quantglow.frontend.reading.light_models import whole
from quantglow.frontend.reading.loading import load_model
from quantglow.frontend.reading.proto import opsets_of

PER_CHANNEL_OPSET = 13
"""DequantizeLinear has an axis from here on."""


def quantizer_input(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]],
) -> onnx.ModelProto:
    """A copy with the given input shapes, at least opset 13, and no weights among its inputs.

    Raises ``ModelError``.
    """
    proto = without_weight_inputs(whole(*load_model(model)))
    for value in proto.graph.input:
        if value.name in input_shapes:
            fix_shape(value, input_shapes[value.name])
    if opsets_of(proto).get("", 1) >= PER_CHANNEL_OPSET:
        return proto
    try:
        return convert_version(proto, PER_CHANNEL_OPSET)
    except RuntimeError as error:
        raise ModelError(f"cannot convert to opset {PER_CHANNEL_OPSET}: {error}") from error


def without_weight_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without initializers among its inputs: the quantizer would ask for their feeds."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    return model


def fix_shape(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size
