"""Constants of an ONNX model that depend on its free dimensions, written as operators.

Known are several models that differ in sizes only.  An integer is solved when one expression gives
its value in all of them: an element of a shape, times or divided by a constant or plus one, or the
product of two.  An array that repeats a smaller one is that, expanded to a shape that is solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantglow.frontend.export.writer import unused
from quantglow.frontend.reading.inference import inferred
from quantglow.types import Array

LAST = np.iinfo(np.int64).max
FIRST = np.iinfo(np.int64).min
"""Ends of a Slice behind the last element, and before the first one."""

LARGE_NBYTES = 2**10
"""Shape inference reads no initializer that is larger: only its shape matters."""

Column = tuple[int, ...]
"""One integer, as it is in each of the models."""


class Unsolved(Exception):
    """No expression was found; the message says for what."""


class Dimension(NamedTuple):
    """The size of a value along an axis, in each of the models."""

    value: str
    axis: int
    sizes: Column


@dataclass
class SizeWriter:
    """Writes integers that differ between ``models`` into ``merged``, from the dimensions of what
    is computed before them."""

    models: Sequence[onnx.ModelProto]
    merged: onnx.ModelProto

    def __post_init__(self) -> None:
        self.shapes = [_shapes_of(model) for model in self.models]
        self.inputs = [v.name for v in self.merged.graph.input]
        graph = self.merged.graph
        outputs = [name for node in graph.node for name in node.output]
        self.used = {*self.inputs, *outputs, *(t.name for t in graph.initializer)}

    def write(self, node: onnx.NodeProto, position: int, values: Sequence[Array]) -> None:
        """Rewrite the operand ``position`` of ``node``, whose ``values`` differ.

        Raises ``Unsolved``.
        """
        name = node.input[position]
        if (core := _repeated(values)) is not None:
            columns = list(zip(*(v.shape for v in values), strict=True))
            shape = self._computed(node, f"{name}:shape", columns)
            node.input[position] = self._emit("Expand", [self._array(core, name), shape], name)
            return
        if values[0].dtype != np.int64 or len({v.shape for v in values}) > 1 or values[0].ndim != 1:
            raise Unsolved(f"its operand {name!r} depends on the shape")
        columns = list(zip(*(v.tolist() for v in values), strict=True))
        short, may_infer = self._short_form(node, position, columns), node.op_type == "Reshape"
        node.input[position] = (
            self._computed(node, name, columns, may_infer)
            if short is None
            else self._integers(short, name)
        )

    def _short_form(
        self, node: onnx.NodeProto, position: int, columns: Sequence[Column]
    ) -> list[int] | None:
        """Integers that mean the same at all sizes; None where the operator has none."""
        before = self._columns(node.input[0])
        if before is None:
            return None
        if node.op_type == "Reshape":
            return _reshaped(columns, before)
        if node.op_type == "Expand":
            return _expanded(columns, before)
        if node.op_type == "Slice" and position in (1, 2):
            return self._ends(node, columns, before)
        return None

    def _ends(
        self, node: onnx.NodeProto, columns: Sequence[Column], before: Sequence[Column]
    ) -> list[int] | None:
        """Starts or ends of a Slice, counted from behind where they move with the size."""
        (axes,) = (t for t in self.merged.graph.initializer if t.name == node.input[3])
        found = [
            _from_behind(column, before[axis])
            for column, axis in zip(columns, numpy_helper.to_array(axes).tolist(), strict=True)
        ]
        known = [end for end in found if end is not None]
        return known if len(known) == len(found) else None

    def _columns(self, value: str) -> list[Column] | None:
        """The shape of a value, axis by axis; None where shape inference does not know it."""
        shapes = [shapes.get(value) for shapes in self.shapes]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        return list(zip(*known, strict=True))

    def _computed(
        self,
        node: onnx.NodeProto,
        name: str,
        columns: Sequence[Column],
        may_infer: bool = False,
    ) -> str:
        """The name of integers that are computed before ``node``: ``Concat`` of its elements.

        ``may_infer``: one of them may be -1, as in a Reshape, which finds it out by itself.
        """
        parts: list[str] = []
        for i, column in enumerate(columns):
            try:
                parts.append(self._element(node, f"{name}:{i}", column))
            except Unsolved:
                if not may_infer:
                    raise
                parts.append(self._integers([-1], f"{name}:{i}"))
                may_infer = False
        return self._emit("Concat", parts, f"{name}:free", axis=0)

    def _element(self, node: onnx.NodeProto, name: str, column: Column) -> str:
        """One integer as a value of shape [1].  Raises ``Unsolved``."""
        if len(set(column)) == 1:
            return self._integers(column[:1], name)
        dimensions = list(self._dimensions(node))
        for dimension in dimensions:
            if (step := _step(column, dimension.sizes)) is not None:
                op_type, constant = step
                return self._applied(op_type, self._dim(dimension, name), constant, name)
        near = (*node.input, *self.inputs)
        for one, two in combinations_with_replacement(dimensions, 2):
            if one.value != two.value and not (one.value in near and two.value in near):
                continue
            product = tuple(a * b for a, b in zip(one.sizes, two.sizes, strict=True))
            if (step := _step(column, product)) is not None:
                operands = [self._dim(one, f"{name}:a"), self._dim(two, f"{name}:b")]
                made = self._emit("Mul", operands, f"{name}:product")
                return self._applied(step[0], made, step[1], name)
        raise Unsolved(f"no dimension gives its sizes {', '.join(map(str, column))}")

    def _dimensions(self, node: onnx.NodeProto) -> Iterator[Dimension]:
        """Dimensions that differ: of the inputs, the operands of ``node``, then what is computed
        before it, the nearest first.
        """
        computed = [name for n in self.merged.graph.node for name in n.output]
        for value in dict.fromkeys((*self.inputs, *node.input, *reversed(computed))):
            for axis, sizes in enumerate(self._columns(value) or ()):
                if len(set(sizes)) > 1:
                    yield Dimension(value, axis, sizes)

    def _dim(self, dimension: Dimension, name: str) -> str:
        axis = dimension.axis
        return self._emit("Shape", [dimension.value], f"{name}:dim", start=axis, end=axis + 1)

    def _applied(self, op_type: str, value: str, constant: int, name: str) -> str:
        if not op_type:
            return value
        return self._emit(op_type, [value, self._integers([constant], f"{name}:by")], name)

    def _integers(self, values: Sequence[int], hint: str) -> str:
        """An initializer of integers."""
        return self._array(np.array(values, np.int64), hint)

    def _array(self, array: Array, hint: str) -> str:
        """An initializer."""
        name = self._new_name(hint)
        self.merged.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _new_name(self, hint: str) -> str:
        name = unused(hint, self.used)
        self.used.add(name)
        return name

    def _emit(self, op_type: str, inputs: Sequence[str], hint: str, **attributes: Any) -> str:
        name = self._new_name(hint)
        made = helper.make_node(op_type, list(inputs), [name], name=name, **attributes)
        self.merged.graph.node.append(made)
        return name


def _repeated(values: Sequence[Array]) -> Array | None:
    """The array that all values repeat along the axes whose sizes differ; None if there is none."""
    shapes = [value.shape for value in values]
    if len(set(shapes)) == 1 or len(set(map(len, shapes))) > 1:
        return None
    sizes = zip(*shapes, strict=True)
    first = tuple(slice(None if len(set(column)) == 1 else 1) for column in sizes)
    core = values[0][first]
    is_core = all(np.array_equal(np.broadcast_to(core, v.shape), v) for v in values)
    return core if is_core else None


def _step(column: Column, sizes: Column) -> tuple[str, int] | None:
    """The operator and constant that turn ``sizes`` into ``column``; ``("", 0)`` if equal."""
    if column == sizes:
        return "", 0
    pairs = list(zip(column, sizes, strict=True))
    for op_type, constants in (
        ("Mul", {c // s if s and c % s == 0 else None for c, s in pairs}),
        ("Div", {s // c if c and s % c == 0 else None for c, s in pairs}),
        ("Add", {c - s for c, s in pairs}),
    ):
        if len(constants) == 1 and (constant := constants.pop()) is not None:
            return op_type, constant
    return None


def _reshaped(columns: Sequence[Column], before: Sequence[Column]) -> list[int] | None:
    """The target of a Reshape: 0 keeps a dimension, -1 stands for one that follows."""
    kept = [axis < len(before) and before[axis] == c for axis, c in enumerate(columns)]
    found = [
        column[0] if len(set(column)) == 1 else 0 if keep else -1
        for column, keep in zip(columns, kept, strict=True)
    ]
    return found if found.count(-1) <= 1 else None


def _expanded(columns: Sequence[Column], before: Sequence[Column]) -> list[int] | None:
    """The target of an Expand: 1 keeps a dimension."""
    own = [(1,) * len(columns[0])] * (len(columns) - len(before)) + list(before)
    found = [
        column[0] if len(set(column)) == 1 else 1 if column == size else None
        for column, size in zip(columns, own, strict=True)
    ]
    known = [size for size in found if size is not None]
    return known if len(known) == len(found) else None


def _from_behind(column: Column, sizes: Column) -> int | None:
    """A start or end of a Slice that holds at all sizes."""
    if len(set(column)) == 1:
        return column[0]
    if all(c == -(s + 1) for c, s in zip(column, sizes, strict=True)):
        return FIRST
    distances = {c - s for c, s in zip(column, sizes, strict=True)}
    if len(distances) > 1 or (distance := distances.pop()) > 0:
        return None
    return distance or LAST


def _shapes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all values that ONNX's shape inference knows."""
    graph = inferred(_without_weights(model)).graph
    found = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = tuple(d.dim_value for d in kind.shape.dim)
    return found


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large initializers as inputs."""
    lean = onnx.ModelProto()
    lean.CopyFrom(model)
    del lean.graph.initializer[:]
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) <= LARGE_NBYTES:
            lean.graph.initializer.append(tensor)
        else:
            kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            lean.graph.input.append(kind)
    return lean
