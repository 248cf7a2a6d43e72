"""Steps before and after a model as chains of standard ONNX operators.

``preceding`` makes the nodes from the data that is fed to an input, ``following`` those from an
output to the result that the caller gets; a ``Chain`` has the nodes of the steps one behind the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import onnx

from quantglow import steps
from quantglow.ir.graph.signature import PortDim, dims_text
from quantglow.support.arrays import Array
from quantglow.support.errors import OptionError

FLOATS = frozenset(
    getattr(onnx.TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
)

FLOAT = onnx.TensorProto.FLOAT
DECLARING = (steps.ElementType, steps.Layout)
"""Steps that describe what is fed."""

RESIZE_OPSET, ABSENT_OPSET, ANTIALIAS_OPSET = 11, 13, 18
"""Opsets since which Resize knows centers of pixels, may lack operands, and knows antialiasing."""

AXIS_OPSET = 13
"""Opset since which Softmax is along one axis; before, along it and all that come after it."""

K_OPSET = 10
"""Opset since which ``k`` of TopK is an operand."""

INDICES = "indices"
INT64 = onnx.TensorProto.INT64

LAST = (steps.TopK, steps.ArgMax)
"""Steps that no other comes behind."""

OF_FLOATS = (steps.Softmax, steps.Sigmoid)


@dataclass
class Chain:
    """Steps that were written, and the value behind them.

    end     how messages call the input or output: "input 'x'"
    name    its name, with which those of the nodes begin
    value   name of the latest result
    dims    its shape; None where the model does not even know the rank
    layout  letters of its axes
    opset   version of the standard operators of the model
    used    names that the model and the chains have
    """

    end: str
    name: str
    value: str
    dims: tuple[PortDim, ...] | None
    layout: str
    opset: int
    used: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        """A node on the latest value and others; its result is the latest value then."""
        self.value = self.node(op, self.value, *operands, **attributes)
        return self.value

    def node(self, op: str, *operands: str, **attributes: Any) -> str:
        """The result of a node."""
        result = self.fresh(op)
        node = onnx.helper.make_node(op, [*operands], [result], name=result, **attributes)
        self.nodes.append(node)
        return result

    def constant(self, role: str, array: Array) -> str:
        """The result of a Constant: before IR version 4 initializers are inputs."""
        name = self.fresh(role)
        tensor = onnx.numpy_helper.from_array(np.array(array, order="C"), name)
        self.nodes.append(onnx.helper.make_node("Constant", [], [name], name, value=tensor))
        return name

    def fresh(self, suffix: str) -> str:
        """A name of its own."""
        return fresh(f"{self.name}:{suffix}", self.used)

    def known_dims(self, step: str) -> tuple[PortDim, ...]:
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

    def with_dim(self, axis: int, size: PortDim) -> tuple[PortDim, ...]:
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


def fresh(name: str, used: set[str]) -> str:
    """``name``, numbered where it is used; it is used then."""
    candidate, number = name, 1
    while candidate in used:
        number += 1
        candidate = f"{name}{number}"
    used.add(candidate)
    return candidate


def _element_kind(value: onnx.ValueInfoProto) -> int:
    """The element type of an input or output; an undeclared one is float."""
    return value.type.tensor_type.elem_type or int(onnx.TensorProto.FLOAT)


def preceding(
    chain: Chain, value: onnx.ValueInfoProto, before: Sequence[steps.Before], inner: str
) -> None:
    """The nodes before an input, whose declaration becomes that of the data that is fed."""
    kind, model_dims = _element_kind(value), chain.dims
    layout = next((step for step in before if isinstance(step, steps.Layout)), None)
    fed = next((step.name for step in before if isinstance(step, steps.ElementType)), None)
    fed_kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(fed)) if fed else kind
    computing = [step for step in before if not isinstance(step, DECLARING)]
    if computing and kind not in FLOATS:
        raise chain.refuse(type(computing[0]).__name__, "the model takes integers there")
    _enter(chain, layout, any(isinstance(step, steps.Resize) for step in before))
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, fed_kind, chain.dims))
    if layout is not None:
        chain.permute("Layout", layout.outside, layout.inside)
    _convert(chain, fed_kind, FLOAT if computing else kind)
    for step in computing:
        write_before(step, chain)
    _convert(chain, FLOAT if computing else kind, kind)
    _check_sizes(chain, model_dims)
    chain.end_as(inner)


def _enter(chain: Chain, layout: steps.Layout | None, is_resized: bool) -> None:
    """Set the chain to what is fed: ``layout`` outside of the model, images of any size if they are
    resized.
    """
    chain.layout = layout.inside if layout else steps.LAYOUTS.get(len(chain.dims or ()), "")
    for letter, size in (("H", "height"), ("W", "width")) if is_resized else ():
        axis = chain.axis("Resize", letter)
        chain.dims = chain.with_dim(axis, fresh(f"{chain.name}_{size}", chain.used))
    if layout is None:
        return
    dims = chain.known_dims("Layout")
    if len(dims) != len(layout.outside):
        raise chain.refuse("Layout", f"it has {len(dims)} axes, {layout.outside!r} others")
    chain.dims = tuple(dims[layout.inside.index(letter)] for letter in layout.outside)
    chain.layout = layout.outside


def _convert(chain: Chain, kind: int, target: int) -> None:
    if kind != target:
        chain.add("Cast", to=target)


def _check_sizes(chain: Chain, model_dims: tuple[PortDim, ...] | None) -> None:
    """Raise ``OptionError`` where the steps give another shape than the model takes."""
    pairs = zip(chain.dims or (), model_dims or (), strict=True)
    if any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        raise chain.refuse(
            "Resize",
            f"the result is {dims_text(chain.dims)}, and the model takes {dims_text(model_dims)}",
            "resize to the sizes of the model",
        )


@singledispatch
def write_before(step: steps.Before, chain: Chain) -> None:
    """Add the nodes of a step that computes."""
    raise TypeError(f"no rule for {type(step).__name__}")


@write_before.register
def _(step: steps.Rescale, chain: Chain) -> None:
    chain.add("Mul", chain.constant("factor", np.array(step.factor, np.float32)))


@write_before.register
def _(step: steps.Normalize, chain: Chain) -> None:
    """Subtraction, then division, each of float32, as torchvision's."""
    chain.add("Sub", chain.constant("mean", _by_channel("Normalize", step.mean, chain)))
    chain.add("Div", chain.constant("std", _by_channel("Normalize", step.std, chain)))


@write_before.register
def _(step: steps.ReverseChannels, chain: Chain) -> None:
    axis = chain.axis("ReverseChannels", "C")
    count = chain.known_dims("ReverseChannels")[axis]
    if not isinstance(count, int):
        raise chain.refuse("ReverseChannels", "the model leaves the number of channels free")
    order = np.arange(count - 1, -1, -1, dtype=np.int64)
    chain.add("Gather", chain.constant("order", order), axis=axis)


@write_before.register
def _(step: steps.Resize, chain: Chain) -> None:
    chain.need_opset("Resize", ANTIALIAS_OPSET if step.antialias else RESIZE_OPSET)
    axes = [chain.axis("Resize", letter) for letter in "HW"]
    chosen: dict[str, Any] = {
        "mode": step.mode,
        "coordinate_transformation_mode": "half_pixel",
    }
    if step.antialias:
        chosen |= {"antialias": 1, "exclude_outside": 1}
    sizes = chain.constant("sizes", np.array([step.height, step.width], np.int64))
    empty = "" if chain.opset >= ABSENT_OPSET else chain.constant("roi", np.zeros(0, np.float32))
    chain.add("Resize", empty, empty, _all_sizes(chain, sizes), **chosen)
    for axis, size in zip(axes, (step.height, step.width), strict=True):
        chain.dims = chain.with_dim(axis, size)


def _all_sizes(chain: Chain, sizes: str) -> str:
    """The sizes of all axes: those of the images are given, the others as they are."""
    shape, places = chain.node("Shape", chain.value), chain.layout
    parts = [
        sizes
        if letter == "H"
        else chain.node("Gather", shape, chain.constant("axis", np.array([index], np.int64)))
        for index, letter in enumerate(places)
        if letter != "W"
    ]
    return chain.node("Concat", *parts, axis=0)


def _by_channel(step: str, values: float | tuple[float, ...], chain: Chain) -> Array:
    """One number, or one for each channel in a shape that broadcasts."""
    array = np.atleast_1d(np.array(values, np.float32))
    if array.size == 1:
        return array.reshape(())
    axis = chain.axis(step, "C")
    dims = chain.known_dims(step)
    if isinstance(dims[axis], int) and dims[axis] != array.size:
        remedy = f"give one number, or {dims[axis]}"
        raise chain.refuse(step, f"it has {dims[axis]} channels, not {array.size}", remedy)
    return array.reshape(-1, *[1] * (len(dims) - 1 - axis))


def following(
    chain: Chain, value: onnx.ValueInfoProto, after: Sequence[steps.After]
) -> list[onnx.ValueInfoProto]:
    """The nodes behind an output, whose declaration becomes that of the result; the outputs that
    come with it.
    """
    kind, results = _element_kind(value), [value.name]
    for index, step in enumerate(after):
        _check(step, after[:index], kind, chain)
        write_after(step, chain)
        if isinstance(step, steps.TopK):
            results.append(fresh(f"{value.name}_{INDICES}", chain.used))
        kind = INT64 if isinstance(step, steps.ArgMax) else kind
    chain.end_as(*results)
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, chain.dims))
    return [onnx.helper.make_tensor_value_info(name, INT64, chain.dims) for name in results[1:]]


def _check(step: steps.After, earlier: Sequence[steps.After], kind: int, chain: Chain) -> None:
    """Raise ``OptionError`` for a step that cannot come here."""
    name = type(step).__name__
    if any(isinstance(other, LAST) for other in earlier):
        raise chain.refuse(name, "no step comes behind TopK and ArgMax")
    if isinstance(step, OF_FLOATS) and kind not in FLOATS:
        raise chain.refuse(name, "the model gives integers there")


@singledispatch
def write_after(step: steps.After, chain: Chain) -> None:
    """Add the nodes of a step."""
    raise TypeError(f"no rule for {type(step).__name__}")


@write_after.register
def _(step: steps.Softmax, chain: Chain) -> None:
    axis = chain.positive_axis("Softmax", step.axis)
    if axis != len(chain.known_dims("Softmax")) - 1:
        chain.need_opset("Softmax", AXIS_OPSET)
    chain.add("Softmax", axis=axis)


@write_after.register
def _(step: steps.Sigmoid, chain: Chain) -> None:
    chain.add("Sigmoid")


@write_after.register
def _(step: steps.Layout, chain: Chain) -> None:
    chain.permute("Layout", step.inside, step.outside)


@write_after.register
def _(step: steps.ArgMax, chain: Chain) -> None:
    axis = chain.positive_axis("ArgMax", step.axis)
    chain.add("ArgMax", axis=axis, keepdims=int(step.keepdims))
    dims = chain.with_dim(axis, 1)
    chain.dims = dims if step.keepdims else (*dims[:axis], *dims[axis + 1 :])


@write_after.register
def _(step: steps.TopK, chain: Chain) -> None:
    chain.need_opset("TopK", K_OPSET)
    axis = chain.positive_axis("TopK", step.axis)
    size = chain.known_dims("TopK")[axis]
    if isinstance(size, int) and step.k > size:
        raise chain.refuse("TopK", f"axis {axis} has {size} values, k is {step.k}")
    k = chain.constant("k", np.array([step.k], np.int64))
    values, indices = chain.fresh("TopK"), chain.fresh(INDICES)
    node = onnx.helper.make_node("TopK", [chain.value, k], [values, indices], values, axis=axis)
    chain.nodes.append(node)
    chain.value, chain.dims = values, chain.with_dim(axis, step.k)
