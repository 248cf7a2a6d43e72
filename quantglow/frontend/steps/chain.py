"""The nodes of the steps at one input or output, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from quantglow.errors import OptionError
from quantglow.foreign_types import Array
from quantglow.graph.signature import Dim, dims_text

FLOATS = frozenset(
    getattr(onnx.TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
)


@dataclass
class Chain:
    """Steps that were written, and the value behind them.

    end     how messages call the input or output: "input 'x'"
    name    its name, with which those of the nodes begin
    value   name of the latest result
    dims    its shape; None where the model does not even know the rank
    layout  letters of its axes
    opset   version of the standard operators of the model
    taken   names that the model and the chains have
    """

    end: str
    name: str
    value: str
    dims: tuple[Dim, ...] | None
    layout: str
    opset: int
    taken: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        """A node on the latest value and others; its result is the latest value then."""
        self.value = self.node(op, self.value, *operands, **attributes)
        return self.value

    def node(self, op: str, *operands: str, **attributes: Any) -> str:
        """The result of a node."""
        result = self.fresh(op)
        made = onnx.helper.make_node(op, [*operands], [result], name=result, **attributes)
        self.nodes.append(made)
        return result

    def constant(self, role: str, array: Array) -> str:
        """The result of a Constant: before IR version 4 initializers are inputs."""
        found = self.fresh(role)
        tensor = onnx.numpy_helper.from_array(np.array(array, order="C"), found)
        self.nodes.append(onnx.helper.make_node("Constant", [], [found], found, value=tensor))
        return found

    def fresh(self, suffix: str) -> str:
        """A name of its own."""
        return fresh(f"{self.name}:{suffix}", self.taken)

    def known_dims(self, step: str) -> tuple[Dim, ...]:
        """The shape.  Raises ``OptionError`` where the rank is not known."""
        if self.dims is None:
            raise self.refuse(step, "the model declares no rank for it")
        return self.dims

    def axis(self, step: str, letter: str) -> int:
        """The axis with a letter of the layout."""
        dims = self.known_dims(step)
        if len(self.layout) != len(dims) or letter not in self.layout:
            raise self.refuse(
                step, f"its shape {dims_text(dims)} has no axis {letter!r}; say which by Layout"
            )
        return self.layout.index(letter)

    def positive_axis(self, step: str, axis: int) -> int:
        """An axis of the latest value, from 0 on."""
        dims = self.known_dims(step)
        if not -len(dims) <= axis < len(dims):
            raise self.refuse(step, f"its shape {dims_text(dims)} has no axis {axis}")
        return axis % len(dims)

    def with_dim(self, axis: int, size: Dim) -> tuple[Dim, ...]:
        """The shape with another size of one axis."""
        assert self.dims is not None
        return (*self.dims[:axis], size, *self.dims[axis + 1 :])

    def end_as(self, *names: str) -> None:
        """Give the results of the last node these names."""
        if not self.nodes:
            self.add("Identity")
        self.nodes[-1].output[:] = names

    def permute(self, step: str, source: str, target: str) -> None:
        """Transpose from one layout to another."""
        dims = self.known_dims(step)
        if len(dims) != len(source):
            raise self.refuse(step, f"it has {len(dims)} axes, the layout {source!r} others")
        perm = [source.index(letter) for letter in target]
        if perm != sorted(perm):
            self.add("Transpose", perm=perm)
            self.dims = tuple(dims[i] for i in perm)
        self.layout = target

    def need_opset(self, step: str, least: int) -> None:
        """Raise ``OptionError`` for a model whose operators are too old for the step."""
        if self.opset < least:
            raise self.refuse(
                step,
                f"the model uses opset {self.opset}, and the step needs {least}",
                f"convert it with onnx.version_converter.convert_version(model, {least})",
            )

    def refuse(self, step: str, why: str, remedy: str = "") -> OptionError:
        remedy = remedy or "leave the step out, or give one that fits"
        return OptionError(f"{step} does not fit {self.end}: {why}. Remedy: {remedy}.")


def fresh(name: str, taken: set[str]) -> str:
    """``name``, numbered where it is taken; it is taken then."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}{number}"
    taken.add(found)
    return found


def kind_of(value: onnx.ValueInfoProto) -> int:
    """The element type of an input or output; an undeclared one is float."""
    return value.type.tensor_type.elem_type or int(onnx.TensorProto.FLOAT)
