"""TFLite files, which are untrusted, and the nodes of their ONNX models.

``TfliteFile`` reads tensors and operators.  ``TableWriter`` makes nodes of floats, between
DequantizeLinear and QuantizeLinear where the file has integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import tflite
from onnx import helper, numpy_helper

from quantglow.ir.symbolic.size import Dim
from quantglow.support.arrays import Array

T = tflite.TensorType
DTYPES: dict[int, np.dtype[Any]] = {
    T.FLOAT32: np.dtype(np.float32),
    T.FLOAT16: np.dtype(np.float16),
    T.INT8: np.dtype(np.int8),
    T.UINT8: np.dtype(np.uint8),
    T.INT16: np.dtype(np.int16),
    T.INT32: np.dtype(np.int32),
    T.INT64: np.dtype(np.int64),
    T.BOOL: np.dtype(np.bool_),
}
KINDS = {code: name for name, code in vars(tflite.BuiltinOperator).items() if name.isupper()}

OPSET, IR_VERSION = 21, 10
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
ACTIVATION = tflite.ActivationFunctionType
LIMITS = {
    ACTIVATION.RELU: (0.0, None),
    ACTIVATION.RELU_N1_TO_1: (-1.0, 1.0),
    ACTIVATION.RELU6: (0.0, 6.0),
}
"""Ends of the fused activations."""


class UnsupportedError(Exception):
    """A part of a file that has no rule; the message says which."""


@dataclass(frozen=True)
class Quantization:
    """real = scale * (integer - zero_point), for each index along ``axis`` or for all."""

    scale: Array
    zero_point: Array
    axis: int

    @property
    def is_per_axis(self) -> bool:
        return len(self.scale) > 1


@dataclass(frozen=True)
class Tensor:
    """A tensor; ``dims`` has -1 for sizes that are free, ``value`` is None for results."""

    name: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    dtype: np.dtype[Any]
    quant: Quantization | None
    value: Array | None


@dataclass(frozen=True)
class Operator:
    """An operator; an input that is absent is -1."""

    kind: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    table: Any

    def options(self, name: str) -> Any:
        """Its options, of their own class."""
        options = getattr(tflite, name)()
        if self.table is not None:
            options.Init(self.table.Bytes, self.table.Pos)
        return options


@dataclass(frozen=True)
class TfliteFile:
    """The one graph of a file."""

    tensors: Sequence[Tensor]
    operators: Sequence[Operator]
    inputs: Sequence[int]
    outputs: Sequence[int]

    @staticmethod
    def of(data: bytes) -> TfliteFile:
        """Raises ``UnsupportedError``, and for damaged files what their numbers lead to."""
        model = tflite.Model.GetRootAsModel(data, 0)
        if model.SubgraphsLength() != 1:
            raise UnsupportedError(f"{model.SubgraphsLength()} graphs: loops and branches")
        graph = model.Subgraphs(0)
        tensors = name(_parse_tensor(model, graph.Tensors(i)) for i in range(graph.TensorsLength()))
        operators = [
            _parse_operator(model, graph.Operators(i)) for i in range(graph.OperatorsLength())
        ]
        return TfliteFile(
            tensors, operators, integers(graph.InputsAsNumpy()), integers(graph.OutputsAsNumpy())
        )


def integers(vector: Any) -> tuple[int, ...]:
    """A vector of the file; that of an empty one is 0."""
    return tuple(map(int, vector)) if isinstance(vector, np.ndarray) else ()


def name(tensors: Any) -> list[Tensor]:
    """The tensors with names of their own."""
    by_name: dict[str, Tensor] = {}
    for index, tensor in enumerate(tensors):
        name = tensor.name or f"tensor_{index}"
        name = f"{name}_{index}" if name in by_name else name
        by_name[name] = replace(tensor, name=name)
    return list(by_name.values())


def _parse_tensor(model: Any, tensor: Any) -> Tensor:
    """A tensor with its constant, if it is one."""
    name = (tensor.Name() or b"").decode()
    if tensor.Type() not in DTYPES:
        raise UnsupportedError(f"tensor {name!r} is of type {tensor.Type()}")
    if tensor.Sparsity() is not None:
        raise UnsupportedError(f"tensor {name!r} is sparse")
    shape, dtype = integers(tensor.ShapeAsNumpy()), DTYPES[tensor.Type()]
    dims = integers(tensor.ShapeSignatureAsNumpy()) or shape
    raw = model.Buffers(tensor.Buffer()).DataAsNumpy()
    value = None
    if isinstance(raw, np.ndarray) and raw.size:
        value = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    return Tensor(name, shape, dims, dtype, _parse_quantization(tensor, dtype), value)


def _parse_quantization(tensor: Any, dtype: np.dtype[Any]) -> Quantization | None:
    """Scales and zero points of an integer tensor, None where it has none."""
    parameters = tensor.Quantization()
    if parameters is None or dtype.kind not in "iu" or not parameters.ScaleLength():
        return None
    scale = np.asarray(parameters.ScaleAsNumpy(), np.float32)
    zero = np.asarray(parameters.ZeroPointAsNumpy(), np.int64)
    zero = zero if zero.size == scale.size else np.zeros(scale.size, np.int64)
    return Quantization(scale, zero.astype(dtype), int(parameters.QuantizedDimension()))


def _parse_operator(model: Any, operator: Any) -> Operator:
    """An operator of the file."""
    code = model.OperatorCodes(operator.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    kind = KINDS.get(number, f"operator {number}")
    if kind == "CUSTOM":
        kind = f"CUSTOM {(code.CustomCode() or b'').decode()}"
    inputs, outputs = map(integers, (operator.InputsAsNumpy(), operator.OutputsAsNumpy()))
    return Operator(kind, inputs, outputs, operator.BuiltinOptions())


@dataclass
class TableWriter:
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
        node = helper.make_node(kind, operands, [output], name=output, **attributes)
        self.nodes.append(node)
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
            self.reals[index] = self.dequantize(self.file.tensors[index])
        return self.reals[index]

    def dequantize(self, tensor: Tensor) -> str:
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
        names = [self.constant(f"{tensor.name}:scale", held[0])]
        return [*names, self.constant(f"{tensor.name}:zero", held[1])] if has_zero else names

    def weights(self, index: int, perm: Sequence[int]) -> str:
        """A constant with its axes in another order, dequantized; scales are along axis 0 then."""
        tensor = self.file.tensors[index]
        value, quant = self.value(index).transpose(perm), tensor.quant
        if quant is not None and quant.is_per_axis:
            quant = replace(quant, axis=list(perm).index(quant.axis))
        shape = tuple(value.shape)
        return self.dequantize(replace(tensor, value=value, quant=quant, shape=shape))

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
        self.result(index, "Identity", [self.clip(index, linear, activation)])

    def clip(self, index: int, linear: str, activation: Dim) -> str:
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
