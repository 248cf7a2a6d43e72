"""Steps from the data that is fed to an input of the model, as standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import onnx

from quantglow import steps
from quantglow.foreign_types import Array
from quantglow.frontend.steps.chain import FLOATS, Chain, fresh, kind_of
from quantglow.graph.signature import Dim, dims_text

FLOAT = onnx.TensorProto.FLOAT
DECLARING = (steps.ElementType, steps.Layout)
"""Steps that describe what is fed."""

RESIZE_OPSET, ABSENT_OPSET, ANTIALIAS_OPSET = 11, 13, 18
"""Opsets since which Resize knows centres of pixels, may lack operands, and knows antialiasing."""


def preceding(
    chain: Chain, value: onnx.ValueInfoProto, own: Sequence[steps.Before], inner: str
) -> None:
    """The nodes before an input, whose declaration becomes that of the data that is fed."""
    kind, wanted = kind_of(value), chain.dims
    layout = next((step for step in own if isinstance(step, steps.Layout)), None)
    fed = next((step.name for step in own if isinstance(step, steps.ElementType)), None)
    fed_kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(fed)) if fed else kind
    computing = [step for step in own if not isinstance(step, DECLARING)]
    if computing and kind not in FLOATS:
        raise chain.refuse(type(computing[0]).__name__, "the model takes integers there")
    enter(chain, layout, any(isinstance(step, steps.Resize) for step in own))
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, fed_kind, chain.dims))
    if layout is not None:
        chain.permute("Layout", layout.outside, layout.inside)
    convert(chain, fed_kind, FLOAT if computing else kind)
    for step in computing:
        write_before(step, chain)
    convert(chain, FLOAT if computing else kind, kind)
    check_sizes(chain, wanted)
    chain.end_as(inner)


def enter(chain: Chain, layout: steps.Layout | None, is_resized: bool) -> None:
    """Set the chain to what is fed: ``layout`` outside of the model, images of any size if they are
    resized.
    """
    chain.layout = layout.inside if layout else steps.LAYOUTS.get(len(chain.dims or ()), "")
    for letter, size in (("H", "height"), ("W", "width")) if is_resized else ():
        axis = chain.axis("Resize", letter)
        chain.dims = chain.with_dim(axis, fresh(f"{chain.name}_{size}", chain.taken))
    if layout is None:
        return
    dims = chain.known_dims("Layout")
    if len(dims) != len(layout.outside):
        raise chain.refuse("Layout", f"it has {len(dims)} axes, {layout.outside!r} others")
    chain.dims = tuple(dims[layout.inside.index(letter)] for letter in layout.outside)
    chain.layout = layout.outside


def convert(chain: Chain, kind: int, wanted: int) -> None:
    if kind != wanted:
        chain.add("Cast", to=wanted)


def check_sizes(chain: Chain, wanted: tuple[Dim, ...] | None) -> None:
    """Raise ``OptionError`` where the steps give another shape than the model takes."""
    pairs = zip(chain.dims or (), wanted or (), strict=True)
    if any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        raise chain.refuse(
            "Resize",
            f"the result is {dims_text(chain.dims)}, and the model takes {dims_text(wanted)}",
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
    chain.add("Sub", chain.constant("mean", by_channel("Normalize", step.mean, chain)))
    chain.add("Div", chain.constant("std", by_channel("Normalize", step.std, chain)))


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
    chain.add("Resize", empty, empty, all_sizes(chain, sizes), **chosen)
    for axis, size in zip(axes, (step.height, step.width), strict=True):
        chain.dims = chain.with_dim(axis, size)


def all_sizes(chain: Chain, sizes: str) -> str:
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


def by_channel(step: str, values: float | tuple[float, ...], chain: Chain) -> Array:
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
