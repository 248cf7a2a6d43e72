"""Importers of operators that reshape or transpose; layouts of images.

ONNX images are channels-first, the graph's are channels-last: Transposes stand around spatial
operators.  An operator on values of rank 3 (one spatial axis) runs as an image of height 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.nodes.values import as_element, value_onnx_type
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops.shape import Concat, Expand, Reshape, Slice, Transpose
from quantglow.ir.symbolic.size import (
    Dim,
    Shape,
    broadcast_shapes,
    decide,
    decide_in,
    decide_max,
    fixed,
    has_free,
    integers,
    is_free,
    is_one,
    likely,
    prod,
)
from quantglow.support.arrays import Array

MAX_ELEMENTS = 2**31
"""Values of more elements are refused; untrusted models ask for any size."""

FEWEST_NUMBERS = 4096
"""Minimum length of the constant that ``counting`` cuts."""


def to_nhwc(call: Call, x: Node | None = None) -> Node:
    """The first operand [N, C, H, W] as [N, H, W, C]; [N, C, L] as [N, 1, L, C].

    ``x``: what the operator reads in its place.
    """
    x = x or call.node(0)
    if x.type.rank == 3:
        x = _as_image(call, x, call.value_name(0))
    if x.type.rank != 4:
        raise Unsupported(f"{x.type.rank - 2} spatial axes are too many")
    return channels_last(call, x, call.value_name(0))


def _as_image(call: Call, x: Node, value_name: str) -> Node:
    """[N, C, L] as [N, C, 1, L].  Shared by all readers."""
    n, c, length = x.type.shape
    name = f"{value_name}:2d"
    return call.scope.share(
        x, "2d", lambda: Reshape(name=call.scope.claim(name, True), x=x, shape=(n, c, 1, length))
    )


def from_nhwc(call: Call, y: Node) -> Node:
    """[N, H, W, C] back to the ONNX layout, of the rank of the first operand."""
    result: Node = channels_first(call, y)
    if len(call.shape(0)) == 3:
        n, c, _, length = result.type.shape
        result = Reshape(name=call.derive("1d"), x=result, shape=(n, c, length))
    return result


def channels_last(call: Call, x: Node, value_name: str) -> Node:
    """Axis 1 moved to the end; ``x`` itself where it is there already.  Shared by all readers."""
    rank = x.type.rank
    if rank <= 2:
        return x
    perm = (0, *range(2, rank), 1)
    name = f"{value_name}:nhwc"
    return call.scope.share(
        x, "nhwc", lambda: Transpose(name=call.scope.claim(name, True), x=x, perm=perm)
    )


def channels_first(call: Call, y: Node) -> Node:
    """The last axis moved to position 1; ``y`` itself where it is there already."""
    rank = y.type.rank
    if rank <= 2:
        return y
    return Transpose(name=call.derive("nchw"), x=y, perm=(0, rank - 1, *range(1, rank - 1)))


@importer("Shape")
def shape(call: Call) -> Array:
    """Known although the operand is not."""
    dims = call.shape(0)
    start, end = call.integer("start", 0), call.integer("end", len(dims))
    return integers(dims[slice(start, end)])


@importer("Size")
def size(call: Call) -> Array:
    return integers(prod(call.shape(0)))


@importer("Reshape")
def reshape(call: Call) -> Node:
    """0 keeps a dimension (unless ``allowzero``), -1 is what remains."""
    dims = call.parameter("shape", 1) or ()
    x = call.tensor(0)
    if not call.integer("allowzero", 0):
        is_kept = [decide(d == 0) for d in dims]
        if any(is_kept[x.type.rank :]):
            raise ValueError(f"shape {dims} keeps dimensions that {x.type.shape} has not")
        dims = tuple(x.type.shape[i] if kept else dims[i] for i, kept in enumerate(is_kept))
    if decide_in(-1, dims):
        is_rest = [decide(d == -1) for d in dims]
        stated = prod(d for d, is_open in zip(dims, is_rest, strict=True) if not is_open)
        open_size = x.type.size // decide_max(stated, 1)
        dims = tuple(open_size if is_open else d for d, is_open in zip(dims, is_rest, strict=True))
    return _reshape_node(call, x, dims)


@importer("Flatten")
def flatten(call: Call) -> Node:
    x, axis = call.tensor(0), call.integer("axis", 1)
    dims = x.type.shape
    axis = axis + len(dims) if axis < 0 else axis
    return _reshape_node(call, x, (prod(dims[:axis]), prod(dims[axis:])))


@importer("Squeeze")
def squeeze(call: Call) -> Node:
    x = call.tensor(0)
    dims = x.type.shape
    axes = call.parameter("axes", 1)
    drop = [i for i, d in enumerate(dims) if is_one(d)] if axes is None else normal(axes, len(dims))
    return _reshape_node(call, x, tuple(d for i, d in enumerate(dims) if i not in drop))


@importer("Unsqueeze")
def unsqueeze(call: Call) -> Node:
    x = call.tensor(0)
    axes = call.parameter("axes", 1) or ()
    rank = x.type.rank + len(axes)
    added = normal(axes, rank)
    dims = iter(x.type.shape)
    return _reshape_node(call, x, tuple(1 if i in added else next(dims) for i in range(rank)))


def _reshape_node(call: Call, x: Node, dims: Shape) -> Node:
    return Reshape(name=call.result, x=x, shape=dims)


def normal(axes: Iterable[Dim], rank: int) -> tuple[int, ...]:
    """Axes counted from the front.  Raises ``ValueError`` outside the rank."""
    axes = fixed(axes)
    if any(not -rank <= a < rank for a in axes):
        raise ValueError(f"axes {axes} are outside rank {rank}")
    return tuple(a + rank if a < 0 else a for a in axes)


@importer("Transpose")
def transpose(call: Call) -> Node:
    x = call.tensor(0)
    perm = call.integers("perm", range(x.type.rank)[::-1])
    return Transpose(name=call.result, x=x, perm=perm)


@importer("Concat")
def concat(call: Call) -> Node:
    """Parts without elements, which must be known, are left out."""
    positions = range(len(call.proto.input))
    is_empty = [call.is_known(i) and decide_in(0, call.shape(i)) for i in positions]
    parts = [call.tensor(i) for i in positions if not is_empty[i]]
    if len(parts) == 1:
        return parts[0]
    (axis,) = normal((call.integer("axis", 1),), parts[0].type.rank)
    return Concat(name=call.result, parts=tuple(parts), axis=axis)


@importer("Expand")
def expand(call: Call) -> Node:
    x = call.tensor(0)
    dims: Shape = tuple(call.array(1, "shape").tolist())
    return Expand(name=call.result, x=x, shape=broadcast_shapes(x.type.shape, dims))


@importer("Tile")
def tile(call: Call) -> Node:
    """Each repeated axis d gets an axis of 1 before it, which expands and is joined to d."""
    x = call.tensor(0)
    repeats: list[Dim] = call.array(1, "repeats").tolist()
    if decide_in(0, repeats):
        raise Unsupported(f"repeats {repeats} leave no elements")
    if len(repeats) != x.type.rank or any(decide(repeat < 1) for repeat in repeats):
        raise ValueError(f"repeats {repeats} do not fit shape {x.type.shape}")
    if decide(prod(repeats) * x.type.size > MAX_ELEMENTS):
        raise Unsupported(f"repeats {repeats} make more than {MAX_ELEMENTS} elements")
    apart: list[Dim] = []
    wide: list[Dim] = []
    for d, r in zip(x.type.shape, repeats, strict=True):
        apart += [1, d] if decide(r > 1) else [d]
        wide += [r, d] if decide(r > 1) else [d]
    joined = tuple(d * r for d, r in zip(x.type.shape, repeats, strict=True))
    x = Reshape(name=call.derive("apart"), x=x, shape=tuple(apart))
    x = Expand(name=call.derive("wide"), x=x, shape=tuple(wide))
    return Reshape(name=call.result, x=x, shape=joined)


@importer("DepthToSpace")
def depth_to_space(call: Call) -> Node:
    """Channels spread over blocks; they are (block, channel) in DCR mode, else (channel, block)."""
    b = call.integer("blocksize", 1)
    x = channels_last(call, call.tensor(0), call.value_name(0))
    n, h, w, c = x.type.shape
    dcr = call.text("mode", "DCR") == "DCR"
    split = (n, h, w, b, b, c // (b * b)) if dcr else (n, h, w, c // (b * b), b, b)
    perm = (0, 1, 3, 2, 4, 5) if dcr else (0, 1, 4, 2, 5, 3)
    return blocks(call, x, split, perm, (n, h * b, w * b, c // (b * b)))


@importer("SpaceToDepth")
def space_to_depth(call: Call) -> Node:
    """The inverse of DepthToSpace."""
    b = call.integer("blocksize", 1)
    x = channels_last(call, call.tensor(0), call.value_name(0))
    n, h, w, c = x.type.shape
    dcr = call.text("mode", "DCR") == "DCR"
    perm = (0, 1, 3, 2, 4, 5) if dcr else (0, 1, 3, 5, 2, 4)
    split = (n, h // b, b, w // b, b, c)
    return blocks(call, x, split, perm, (n, h // b, w // b, c * b * b))


def blocks(call: Call, x: Node, split: Shape, perm: tuple[int, ...], joined: Shape) -> Node:
    apart = Reshape(name=call.derive("split"), x=x, shape=split)
    moved = Transpose(name=call.derive("moved"), x=apart, perm=perm)
    return channels_first(call, Reshape(name=call.result, x=moved, shape=joined))


@importer("EyeLike")
def eye_like(call: Call) -> Array:
    """Ones on the k-th diagonal: known although the operand is not."""
    rows, columns = fixed(call.shape(0))
    onnx_type = call.integer("dtype", 0) or value_onnx_type(call.value(0))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx_type)
    call.reserve((rows, columns), dtype.itemsize)
    return np.eye(rows, columns, call.integer("k", 0), dtype)


def sequence(call: Call) -> Array | Node:
    """``start + i * delta`` up to ``limit``, which it does not reach."""
    start, limit, delta = (call.array(i, "bound").reshape(()) for i in range(3))
    is_free_range = (has_free(start) or has_free(limit)) and not has_free(delta)
    if is_free_range and delta == 1 and decide(start.item() >= 0):
        return counting(call.derive("all"), call.result, start.item(), limit.item())
    if decide(delta.item() == 0):
        raise ValueError("delta is 0")
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    call.reserve((count,), 8)
    return np.asarray(start + np.arange(count) * delta, start.dtype)


def counting(whole: str, name: str, start: Dim, limit: Dim) -> Node:
    """The integers from ``start`` to below ``limit``, which are free: a part of a longer constant,
    so that there is a largest."""
    most = max(FEWEST_NUMBERS, 4 << (likely(limit) - 1).bit_length())
    numbers = Constant(name=whole, value=np.arange(most, dtype=np.int64))
    return Slice(name=name, x=numbers, starts=(start,), sizes=(limit - start,), steps=(1,))


@importer("ConstantOfShape")
def fill(call: Call) -> Array | Node:
    dims: Shape = tuple(call.array(0, "shape").reshape(-1).tolist())
    if any(decide(size < 0) for size in dims):
        raise Unsupported(f"it would have shape {dims}")
    value = call.attributes.get("value")
    element = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if any(map(is_free, dims)):
        one = Constant(name=call.derive("one"), value=as_element(element.reshape(-1)[0]))
        return Expand(name=call.result, x=one, shape=dims)
    call.reserve(dims, element.itemsize)
    return np.full(fixed(dims), element.reshape(-1)[0])
