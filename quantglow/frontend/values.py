"""What an ONNX value name stands for while a model is imported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from quantglow.errors import ModelError
from quantglow.graph.node import Node
from quantglow.types import Array, DType


@dataclass(frozen=True, eq=False)
class Known:
    """A value of any ONNX type that is known at import; enters the graph when an op reads it."""

    name: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def onnx_type(self) -> int:
        """The ``TensorProto`` element type."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype))


@dataclass(frozen=True, eq=False)
class Foreign:
    """A run-time value the graph cannot hold (not float, or of a node that was refused).

    ``reported`` tells that the cause is already among the problems of the model.
    """

    onnx_type: int
    shape: tuple[int, ...] | None
    reported: bool

    @property
    def kind(self) -> str:
        """The element type in words."""
        return str(onnx.helper.tensor_dtype_to_string(self.onnx_type)).split(".")[-1].lower()


Value = Node | Known | Foreign


def shape_of(value: Value) -> tuple[int, ...] | None:
    """The shape of a value, None if unknown."""
    return value.type.shape if isinstance(value, Node) else value.shape


def onnx_type_of(value: Value) -> int:
    """The ``TensorProto`` element type; graph nodes are float32."""
    return int(onnx.TensorProto.FLOAT) if isinstance(value, Node) else value.onnx_type


def is_float_type(onnx_type: int) -> bool:
    """Whether values of the ONNX element type are computed as float32."""
    return onnx_type in _FLOATS


_FLOATS = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.BFLOAT16,
    }
)


def dtype_of(name: str, onnx_type: int) -> DType:
    """How values of the ONNX element type are fed.  Raises ``ModelError``."""
    if is_float_type(onnx_type):
        return DType.F32
    try:
        return DType.of(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(onnx_type)))
    except (TypeError, KeyError):
        kind = onnx.helper.tensor_dtype_to_string(onnx_type)
        raise ModelError(f"{name!r} holds elements of type {kind}; quantglow has none") from None


def as_float32(array: Array) -> Array:
    """A contiguous float32 copy (or the array itself); what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)
