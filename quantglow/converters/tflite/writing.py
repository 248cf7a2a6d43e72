"""Nodes of the ONNX model of a TFLite file: float, between Dequantize and Quantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import tflite
from onnx import helper, numpy_helper

from quantglow.converters.tflite.reading import Tensor, TfliteFile, UnsupportedError
from quantglow.foreign_types import Array

OPSET, IR_VERSION = 21, 10
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
ACTIVATION = tflite.ActivationFunctionType
LIMITS = {
    ACTIVATION.RELU: (0.0, None),
    ACTIVATION.RELU_N1_TO_1: (-1.0, 1.0),
    ACTIVATION.RELU6: (0.0, 6.0),
}
"""Ends of the fused activations."""


@dataclass
class Writer:
    """Nodes and constants of the ONNX model.  Values keep TFLite's names, shapes and layout."""

    file: TfliteFile
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    reals: dict[int, str] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The model with the file's inputs and outputs; a free first size is "batch"."""
        inputs, outputs = (list(map(self.port, e)) for e in (self.file.inputs, self.file.outputs))
        held = list(self.constants.values())
        graph = helper.make_graph(self.nodes, "tflite", inputs, outputs, held)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def port(self, index: int) -> onnx.ValueInfoProto:
        """An input or output of the model."""
        tensor = self.file.tensors[index]
        kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        is_free = tensor.dims[:1] == (-1,)
        dims: list[int | str] = [*tensor.shape]
        return helper.make_tensor_value_info(
            tensor.name, kind, ["batch", *dims[1:]] if is_free else dims
        )

    def node(self, kind: str, operands: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node that is named for its output, and give that name."""
        made = helper.make_node(kind, operands, [output], name=output, **attributes)
        self.nodes.append(made)
        return output

    def constant(self, name: str, value: Any) -> str:
        """A constant of the model."""
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    # -- values

    def value(self, index: int) -> Array:
        """The elements of a constant.  Raises ``UnsupportedError``."""
        tensor = self.file.tensors[index]
        if tensor.value is None:
            raise UnsupportedError(f"tensor {tensor.name!r} is computed, not a constant")
        return tensor.value

    def real(self, index: int) -> str:
        """The real numbers of a tensor: dequantized once where it is quantized."""
        if index not in self.reals:
            self.reals[index] = self.dequantized(self.file.tensors[index])
        return self.reals[index]

    def dequantized(self, tensor: Tensor) -> str:
        """The name of the real numbers that a tensor stands for."""
        stored = tensor.name
        if tensor.value is not None:
            stored = self.constant(stored, tensor.value)
        if tensor.quant is None:
            return stored
        axis = {"axis": tensor.quant.axis} if tensor.quant.is_per_axis else {}
        operands = [stored, *self.parameters(tensor, has_zero=tensor.dtype != np.int32)]
        return self.node("DequantizeLinear", operands, f"{tensor.name}:real", **axis)

    def parameters(self, tensor: Tensor, has_zero: bool = True) -> list[str]:
        """The scale and zero point of a quantized tensor."""
        assert tensor.quant is not None
        scale, zero = tensor.quant.scale, tensor.quant.zero_point
        held = (scale, zero) if tensor.quant.is_per_axis else (scale[0], zero[0])
        made = [self.constant(f"{tensor.name}:scale", held[0])]
        return [*made, self.constant(f"{tensor.name}:zero", held[1])] if has_zero else made

    def weights(self, index: int, perm: Sequence[int]) -> str:
        """A constant with its axes in another order, dequantized; scales are along axis 0 then."""
        tensor = self.file.tensors[index]
        value, quant = self.value(index).transpose(perm), tensor.quant
        if quant is not None and quant.is_per_axis:
            quant = replace(quant, axis=list(perm).index(quant.axis))
        shape = tuple(value.shape)
        return self.dequantized(replace(tensor, value=value, quant=quant, shape=shape))

    # -- results

    def begun(self, index: int) -> str:
        """The name of a result before it is quantized."""
        tensor = self.file.tensors[index]
        return tensor.name if tensor.quant is None else f"{tensor.name}:float"

    def done(self, index: int) -> None:
        """Quantize the result that has the name ``begun(index)``."""
        tensor = self.file.tensors[index]
        if tensor.quant is not None:
            operands = [self.begun(index), *self.parameters(tensor)]
            self.node("QuantizeLinear", operands, tensor.name)

    def result(self, index: int, kind: str, operands: Sequence[str], **attributes: Any) -> None:
        """A node whose result is a tensor of the file."""
        self.node(kind, operands, self.begun(index), **attributes)
        self.done(index)

    def activated(self, index: int, linear: str, activation: int) -> None:
        """A result that a fused activation makes of ``linear``."""
        self.result(index, "Identity", [self.clipped(index, linear, activation)])

    def clipped(self, index: int, linear: str, activation: int) -> str:
        """``linear`` behind the activation that is fused into the operator of a result."""
        name = self.begun(index)
        if activation == ACTIVATION.NONE:
            return linear
        if activation not in LIMITS:
            raise UnsupportedError(f"the activation {activation} that is fused into {name!r}")
        low, high = LIMITS[activation]
        if high is None:
            return self.node("Relu", [linear], f"{name}:clipped")
        ends = [self.constant(f"limit:{end}", np.float32(end)) for end in (low, high)]
        return self.node("Clip", [linear, *ends], f"{name}:clipped")
