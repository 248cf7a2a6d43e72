"""A random ONNX graph in the making: its values so far, and the addition of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, checker, defs, helper, numpy_helper, shape_inference

OPSETS = (26, 26, 26, 26, 28, 21, 17, 13, 11, 9)
"""Opsets; the newest one that onnxruntime 1.31 reads is the likeliest, see
``compare.for_onnxruntime``."""
MOST_ELEMENTS = 3000
"""Maximum number of elements of a value; nodes with larger results are not drawn."""
MOST_RANK = 6
MOST_INPUTS = 5
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)
"""Sizes around the widths of vectors and tiles."""

APART = 0.9
"""Probability that a node is not drawn because it mixes the samples of a batch."""

ML, ML_OPSET = "ai.onnx.ml", 3
MICROSOFT = "com.microsoft"
FLOAT, INTEGER, CONDITION = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
INT32, INT8, UINT8 = TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8
WHOLE = (INTEGER, INT32, INT8, UINT8)
DRAWN = (FLOAT, CONDITION, *WHOLE)


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
    """A graph in the making; ``rng`` decides everything, so a seed names a graph.

    ``values`` can be operands of a new node; ``ends`` become outputs of the graph only; the model
    declares the types of ``declared``.  ``batch`` is the first size of every drawn shape; without
    one it is often 1.
    """

    rng: np.random.Generator
    opset: int = OPSETS[0]
    batch: int | None = None
    most_elements: int = MOST_ELEMENTS
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    ends: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    declared: list[Value] = field(default_factory=list)
    names: int = 0

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def some(self, options: dict[str, Sequence[Any]]) -> dict[str, Any]:
        """Attributes; each is left out or has one of its options."""
        return {name: self.choose(of) for name, of in options.items() if self.chance(0.6)}

    def input(self, element: int, shape: Sequence[int]) -> Value:
        value = Value(f"x{len(self.inputs)}", element, tuple(shape))
        self.inputs.append(value)
        self.values.append(value)
        return value

    def shape(self, *ranks: int) -> list[int]:
        """A random shape, of one of these ranks if any are given."""
        sizes = [self.choose(SIZES) for _ in range(self.choose(ranks or (1, 2, 2, 3, 3, 4, 4, 4)))]
        if self.batch or self.chance(0.7):
            sizes[:1] = [self.batch or 1] * len(sizes[:1])
        while np.prod(sizes) > MOST_ELEMENTS // 2:
            sizes[max(range(len(sizes)), key=lambda axis: (sizes[axis], axis))] //= 2
        return sizes

    def pick(self, expected: Callable[[Value], bool]) -> Value:
        """A value that fits; the newest are the likeliest, so that graphs grow deep."""
        fitting = [value for value in self.values if expected(value)]
        if not fitting:
            raise Rejected("no operand")
        if self.chance(0.6):
            fitting = fitting[-2:]
        return self.choose(fitting)

    def of(self, elements: Sequence[int], *ranks: int) -> Value:
        """A value of one of these types, and ranks if any are given; if there is none, a
        new input.
        """
        try:
            return self.pick(lambda v: v.element in elements and (not ranks or v.rank in ranks))
        except Rejected:
            if len(self.inputs) == MOST_INPUTS:
                raise
            return self.input(self.choose(elements), self.shape(*ranks))

    def floats(self, *ranks: int) -> Value:
        return self.of((FLOAT,), *ranks)

    def any(self, *ranks: int) -> Value:
        """A value of any type."""
        return self.pick(lambda v: not ranks or v.rank in ranks)

    def constant(self, array: NDArray[Any] | np.generic) -> Value:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return Value(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    def normal(self, *shape: int, mean: float = 0.0) -> Value:
        """A constant of normal numbers."""
        return self.constant(self.rng.normal(mean, 1, shape).astype(np.float32))

    def uniform(self, low: float, high: float, *shape: int) -> Value:
        return self.constant(self.rng.uniform(low, high, shape).astype(np.float32))

    def weights(self, *shape: int) -> Value:
        """Normal numbers that keep sums near 1; sometimes a row of zeros."""
        fan_in = max(1, int(np.prod(shape[1:], dtype=np.int64)))
        array = self.rng.standard_normal(shape) / np.sqrt(fan_in)
        if self.chance(0.1) and array.ndim:
            array[self.integer(0, shape[0] - 1)] = 0
        return self.constant(array.astype(np.float32))

    def node(
        self,
        op: str,
        *operands: Value | None,
        outputs: int | Sequence[bool] = 1,
        of_shape: Sequence[int] | None = None,
        **settings: Any,
    ) -> Value:
        """Add a node; its first output.  Raises ``Rejected``.

        ``settings`` are attributes, or constant operands if this opset has them as operands.
        ``outputs`` is their number, or a list of those present; ``of_shape`` theirs where ONNX
        does not infer it.
        """
        built = self.add(op, operands, outputs, settings, of_shape)
        if self.batch and self.chance(APART) and not all(map(self.has_samples, built)):
            self.nodes.pop()
            raise Rejected("no samples")
        self.values.extend(built)
        return built[0]

    def inner(self, op: str, *operands: Value | None, **settings: Any) -> Value:
        """The result of ``node``, which only the caller reads."""
        return self.add(op, operands, 1, settings)[0]

    def end(self, op: str, *operands: Value | None, **settings: Any) -> Value:
        """The result of ``node``, which becomes an output that no node reads."""
        (built,) = self.add(op, operands, 1, settings)
        self.ends.append(built)
        return built

    def shaped(self, shape: Sequence[int], op: str, *operands: Value, **settings: Any) -> Value:
        """The result of ``node``, whose shape follows from constants and is missed by shape
        inference.
        """
        (built,) = self.add(op, operands, 1, settings, shape)
        self.values.append(built)
        return built

    def classical(
        self,
        op: str,
        operands: Sequence[Value | None],
        *results: tuple[int, Sequence[int]],
        domain: str = ML,
        left_out: Sequence[int] = (),
        **attributes: Any,
    ) -> Value:
        """Add a node of ai.onnx.ml, or of another domain for whose operators ONNX infers no types;
        its last result.  Results ``left_out`` have no name."""
        numbers = range(len(results))
        names = ["" if i in left_out else f"v{self.names + i}" for i in numbers]
        proto = helper.make_node(
            op,
            [value.name if value else "" for value in operands],
            names,
            name=f"n{len(self.nodes)}",
            domain=domain,
            **attributes,
        )
        types = [helper.make_tensor_type_proto(element, shape) for element, shape in results]
        pairs = zip(names, types, strict=True)
        built = [value_of(name, kind) for name, kind in pairs if name]
        self.names += len(names)
        self.nodes.append(proto)
        self.values.extend(built)
        self.declared.extend(built)
        return built[-1]

    def add(
        self,
        op: str,
        operands: Sequence[Value | None],
        outputs: int | Sequence[bool],
        settings: dict[str, Any],
        shape: Sequence[int] | None = None,
    ) -> list[Value]:
        schema = self.schema(op)
        operands, attributes = self.arranged(schema, operands, settings)
        expected = [True] * outputs if isinstance(outputs, int) else outputs
        names = [f"v{self.names + i}" if w else "" for i, w in enumerate(expected)]
        present = [value.name if value else "" for value in operands]
        proto = helper.make_node(op, present, names, name=f"n{len(self.nodes)}", **attributes)
        kinds = self.types(schema, proto, operands)
        built = [
            value_of(name, kinds.get(name), shape, self.most_elements) for name in names if name
        ]
        self.names += len(names)
        self.nodes.append(proto)
        return built

    def has_samples(self, value: Value) -> bool:
        """Whether the first axis of a value is as long as that of the inputs."""
        return value.shape[:1] == (self.batch,)

    def schema(self, op: str) -> defs.OpSchema:
        """The operator in this graph's opset."""
        try:
            schema = defs.get_schema(op, self.opset)
        except defs.SchemaError as error:
            raise Rejected(f"{op} is newer than opset {self.opset}") from error
        if schema.deprecated:
            raise Rejected(f"{op} is no more in opset {self.opset}")
        return schema

    def arranged(
        self, schema: defs.OpSchema, operands: Sequence[Value | None], settings: dict[str, Any]
    ) -> tuple[list[Value | None], dict[str, Any]]:
        """Operands and attributes; settings that the schema has as operands become constants."""
        formal = [parameter.name for parameter in schema.inputs]
        placed, attributes = list(operands), {}
        for name, setting in settings.items():
            if name not in formal:
                attributes[name] = setting.item() if isinstance(setting, np.generic) else setting
                continue
            at = formal.index(name)
            placed += [None] * (at + 1 - len(placed))
            plain = isinstance(setting, int | list | tuple)
            placed[at] = self.constant(np.asarray(setting, np.int64) if plain else setting)
        if unknown := [name for name in attributes if name not in schema.attributes]:
            raise Rejected(f"no {unknown} in opset {self.opset}")
        return placed, attributes

    def types(
        self, schema: defs.OpSchema, proto: onnx.NodeProto, operands: Sequence[Value | None]
    ) -> dict[str, onnx.TypeProto]:
        known = {tensor.name: tensor for tensor in self.constants}
        present = [value for value in operands if value]
        kinds = {v.name: helper.make_tensor_type_proto(v.element, v.shape) for v in present}
        data = {v.name: known[v.name] for v in present if v.name in known}
        try:
            imports = [helper.make_opsetid("", self.opset)]
            return dict(
                shape_inference.infer_node_outputs(
                    schema, proto, kinds, data, opset_imports=imports
                )
            )
        except (
            shape_inference.InferenceError,
            checker.ValidationError,
            defs.SchemaError,
            ValueError,
            RuntimeError,
        ) as error:
            raise Rejected(str(error)) from error


def value_of(
    name: str,
    kind: onnx.TypeProto | None,
    shape: Sequence[int] | None = None,
    most_elements: int = MOST_ELEMENTS,
) -> Value:
    """The value of an inferred type.  Raises ``Rejected`` for free, empty or too large shapes."""
    if kind is None or kind.tensor_type.elem_type not in DRAWN:
        raise Rejected("unknown type")
    dims = kind.tensor_type.shape.dim
    if shape is None:
        if not kind.tensor_type.HasField("shape") or any(not d.HasField("dim_value") for d in dims):
            raise Rejected("free shape")
        shape = [dim.dim_value for dim in dims]
    value = Value(name, kind.tensor_type.elem_type, tuple(shape))
    if min(value.shape, default=1) < 1 or value.size > most_elements or value.rank > MOST_RANK:
        raise Rejected("too large")
    return value
