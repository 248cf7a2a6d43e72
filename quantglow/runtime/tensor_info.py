"""Inputs and outputs as onnxruntime describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantglow.errors import InputError
from quantglow.graph.border import numpy_type
from quantglow.graph.signature import DECLARED, Dim, Port
from quantglow.types import DType

_ONNXRUNTIME_TYPES = {
    DType.F32: "tensor(float)",
    DType.I8: "tensor(int8)",
    DType.U8: "tensor(uint8)",
    DType.I16: "tensor(int16)",
    DType.I32: "tensor(int32)",
    DType.I64: "tensor(int64)",
    DType.BOOL: "tensor(bool)",
}
_DECLARED_TYPES = {kind: f"tensor({kind})" for kind in DECLARED} | {"float64": "tensor(double)"}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as onnxruntime's ``NodeArg`` describes it."""

    name: str
    shape: list[Dim]
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements.  Raises ``InputError`` for values that are not numeric
        tensors.
        """
        element = self.type.removeprefix("tensor(").removesuffix(")")
        try:
            return numpy_type({"float": "float32", "double": "float64"}.get(element, element))
        except TypeError:
            raise InputError(f"{self.name!r} is {self.type}, which no array holds") from None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor: no sequence, optional or map."""
        return self.type.startswith("tensor(")

    @property
    def is_numeric(self) -> bool:
        """Whether it is a tensor of numbers."""
        return self.is_tensor and self.type != "tensor(string)"

    @staticmethod
    def of_node(node: Any) -> TensorInfo:
        """The text of onnxruntime's ``NodeArg``."""
        return TensorInfo(node.name, node.shape, node.type)

    @staticmethod
    def of(port: Port) -> TensorInfo:
        kind = _DECLARED_TYPES.get(port.declared, _ONNXRUNTIME_TYPES[port.dtype])
        return TensorInfo(port.name, list(port.dims or ()), kind)
