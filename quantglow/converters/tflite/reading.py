"""Tensors and operators of a TFLite file, which is untrusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tflite

from quantglow.foreign_types import Array

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
        found = getattr(tflite, name)()
        if self.table is not None:
            found.Init(self.table.Bytes, self.table.Pos)
        return found


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
        tensors = named(tensor_of(model, graph.Tensors(i)) for i in range(graph.TensorsLength()))
        operators = [operator_of(model, graph.Operators(i)) for i in range(graph.OperatorsLength())]
        return TfliteFile(
            tensors, operators, integers(graph.InputsAsNumpy()), integers(graph.OutputsAsNumpy())
        )


def integers(found: Any) -> tuple[int, ...]:
    """A vector of the file; that of an empty one is 0."""
    return tuple(map(int, found)) if isinstance(found, np.ndarray) else ()


def named(tensors: Any) -> list[Tensor]:
    """The tensors with names of their own."""
    found: dict[str, Tensor] = {}
    for index, tensor in enumerate(tensors):
        name = tensor.name or f"tensor_{index}"
        name = f"{name}_{index}" if name in found else name
        found[name] = replace(tensor, name=name)
    return list(found.values())


def tensor_of(model: Any, tensor: Any) -> Tensor:
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
    return Tensor(name, shape, dims, dtype, quantization_of(tensor, dtype), value)


def quantization_of(tensor: Any, dtype: np.dtype[Any]) -> Quantization | None:
    """Scales and zero points of an integer tensor, None where it has none."""
    found = tensor.Quantization()
    if found is None or dtype.kind not in "iu" or not found.ScaleLength():
        return None
    scale = np.asarray(found.ScaleAsNumpy(), np.float32)
    zero = np.asarray(found.ZeroPointAsNumpy(), np.int64)
    zero = zero if zero.size == scale.size else np.zeros(scale.size, np.int64)
    return Quantization(scale, zero.astype(dtype), int(found.QuantizedDimension()))


def operator_of(model: Any, operator: Any) -> Operator:
    """An operator of the file."""
    code = model.OperatorCodes(operator.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    kind = KINDS.get(number, f"operator {number}")
    if kind == "CUSTOM":
        kind = f"CUSTOM {(code.CustomCode() or b'').decode()}"
    inputs, outputs = map(integers, (operator.InputsAsNumpy(), operator.OutputsAsNumpy()))
    return Operator(kind, inputs, outputs, operator.BuiltinOptions())
