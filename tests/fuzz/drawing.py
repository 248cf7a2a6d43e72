"""A random ONNX graph while it is being drawn: values so far, and how a node is added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

OPSET = 21
MOST_ELEMENTS = 3000
"""Of a value; larger results are not drawn."""

FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Rejected(Exception):
    """ONNX does not allow the node that was drawn, or it is too large."""


@dataclass(frozen=True)
class Value:
    """A value that nodes can read."""

    name: str
    element: int
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class Drawing:
    """``rng`` decides everything, so a seed names a graph."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def input(self, element: int, shape: Sequence[int]) -> Value:
        value = Value(f"x{len(self.inputs)}", element, tuple(shape))
        self.inputs.append(value)
        self.values.append(value)
        return value

    def pick(self, wanted: Callable[[Value], bool]) -> Value:
        """A value that fits; the newest are the likeliest, so that graphs grow deep."""
        fitting = [value for value in self.values if wanted(value)]
        if not fitting:
            raise Rejected("no operand")
        if self.chance(0.6):
            fitting = fitting[-2:]
        return self.choose(fitting)

    def floats(self, *ranks: int) -> Value:
        """A float value, of one of these ranks if any are given."""
        return self.pick(lambda v: v.element == FLOAT and (not ranks or v.rank in ranks))

    def constant(self, array: NDArray[Any]) -> Value:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return Value(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    def integers(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64))

    def weights(self, *shape: int) -> Value:
        """Normal numbers that keep sums near 1; now and then a row of zeros."""
        fan_in = max(1, int(np.prod(shape[1:], dtype=np.int64)))
        array = self.rng.standard_normal(shape) / np.sqrt(fan_in)
        if self.chance(0.1) and array.ndim:
            array[self.integer(0, shape[0] - 1)] = 0
        return self.constant(array.astype(np.float32))

    def node(self, op: str, *operands: Value | None, outputs: int = 1, **attributes: Any) -> Value:
        """Add a node; its first output.  Raises ``Rejected``."""
        first = sum(len(node.output) for node in self.nodes)
        names = [f"v{first + i}" for i in range(outputs)]
        present = [value.name if value else "" for value in operands]
        proto = helper.make_node(op, present, names, name=f"n{len(self.nodes)}", **attributes)
        made = [value_of(name, kind) for name, kind in self._types(proto, operands).items()]
        if len(made) != outputs:
            raise Rejected(f"{op}: unknown outputs")
        self.nodes.append(proto)
        self.values.extend(made)
        return made[0]

    def _types(
        self, proto: onnx.NodeProto, operands: Sequence[Value | None]
    ) -> dict[str, onnx.TypeProto]:
        known = {tensor.name: tensor for tensor in self.constants}
        present = [value for value in operands if value]
        kinds = {v.name: helper.make_tensor_type_proto(v.element, v.shape) for v in present}
        data = {v.name: known[v.name] for v in present if v.name in known}
        try:
            schema = onnx.defs.get_schema(proto.op_type, OPSET)
            return dict(shape_inference.infer_node_outputs(schema, proto, kinds, data))
        except (
            shape_inference.InferenceError,
            onnx.defs.SchemaError,
            ValueError,
            RuntimeError,
        ) as error:
            raise Rejected(str(error)) from error


def value_of(name: str, kind: onnx.TypeProto) -> Value:
    """The value of an inferred type.  Raises ``Rejected`` for what is free, empty or too large."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or tensor.elem_type not in (FLOAT, INTEGER, CONDITION):
        raise Rejected("unknown type")
    dims = tensor.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        raise Rejected("free shape")
    value = Value(name, tensor.elem_type, tuple(dim.dim_value for dim in dims))
    if min(value.shape, default=1) < 1 or value.size > MOST_ELEMENTS or value.rank > 6:
        raise Rejected("too large")
    return value
