"""Export of operators that move elements, read and write at indices, or loop.

An ONNX Loop has a body that takes its elements by the number of the trip.
"""

from __future__ import annotations

import numpy as np
import onnx

from quantglow.export.onnx.writer import (
    OnnxValue,
    OnnxWriter,
    channels_first,
    export_rule,
    identity,
    moves_only_ones,
    of_rank,
    permute,
)
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    AntialiasedResize,
    Concat,
    Expand,
    Gather,
    Pad,
    Reshape,
    Resize,
    Scatter,
    Slice,
    TopK,
)
from quantglow.ir.ops.loop import Loop
from quantglow.ir.symbolic.size import Dim, FixedShape, decide, decide_equal, is_free, surely_equal
from quantglow.ir.types import DType

IMAGE = channels_first(4)

MOVES = ("Expand", "MaxPool", "Reshape", "Slice", "Transpose")
"""Operators behind which onnxruntime may move DequantizeLinear."""


@export_rule(Reshape)
def reshape(node: Reshape, w: OnnxWriter) -> OnnxValue:
    """Between the orders of axes in which x is there and ONNX wants images, if memory agrees."""
    before, after = w.order(node.x), identity(node.type.rank)
    if not moves_only_ones(node.x.type.shape, before):
        before = identity(node.x.type.rank)
    if node.type.rank == 4 and moves_only_ones(node.shape, IMAGE):
        after = IMAGE
    shape = permute(node.shape, after)
    if surely_equal(shape, permute(node.x.type.shape, before)):
        return OnnxValue(w.stored(node.x, before), after)
    return w.rounded(node, w.reshaped(w.real(node.x, before), shape, node.name), after)


@export_rule(Expand)
def expand(node: Expand, w: OnnxWriter) -> OnnxValue:
    rank = node.type.rank
    perm = w.order(node.x) if node.x.type.rank == rank else identity(rank)
    x_perm = perm if node.x.type.rank == rank else identity(node.x.type.rank)
    shape = w.integers(permute(of_rank(node.shape, rank), perm), f"{node.name}:shape")
    result = w.emit("Expand", [w.real(node.x, x_perm), shape], f"{node.name}:real")
    return w.rounded(node, result, perm)


@export_rule(Concat)
def concat(node: Concat, w: OnnxWriter) -> OnnxValue:
    perm = w.common_order(node.parts, node.type.rank)
    parts = [w.real(part, perm) for part in node.parts]
    result = w.emit("Concat", parts, f"{node.name}:real", axis=perm.index(node.axis))
    return w.rounded(node, result, perm)


@export_rule(Slice)
def slice_(node: Slice, w: OnnxWriter) -> OnnxValue:
    """An end that is reached backwards is counted from behind: -1 would be the last element."""
    if (numbers := count(node, w)) is not None:
        return OnnxValue(numbers, identity(1))
    perm = w.order(node.x)
    rows: list[tuple[Dim, Dim, int, Dim]] = []
    for axis, p in enumerate(perm):
        d, start, size, step = node.x.type.shape[p], node.starts[p], node.sizes[p], node.steps[p]
        end = start + size * step
        if not surely_equal((start, size, step), (0, d, 1)):
            rows.append((start, end if decide(step > 0) else end - d, axis, step))
    if not rows:
        return OnnxValue(w.stored(node.x, perm), perm)
    columns = zip(("starts", "ends", "axes", "steps"), zip(*rows, strict=True), strict=True)
    operands = [w.integers(values, f"{node.name}:{label}") for label, values in columns]
    result = w.emit("Slice", [w.real(node.x, perm), *operands], f"{node.name}:real")
    return w.rounded(node, result, perm)


def count(node: Slice, w: OnnxWriter) -> str | None:
    """Range for a free part of the integers from 0, which a graph stores up to some number."""
    if not isinstance(node.x, Constant) or node.type.rank != 1 or not is_free(node.sizes[0]):
        return None
    value, is_dense = node.x.value, decide_equal(node.steps, (1,))
    if not is_dense or value.dtype != np.int64 or (value != np.arange(len(value))).any():
        return None
    (start,), (size,) = node.starts, node.sizes
    ends = [w.integers([end], f"{node.name}:{end}") for end in (start, start + size)]
    bounds = [w.reshaped(end, (), node.name) for end in ends]
    one = w.constant(np.array(1, np.int64), f"{node.name}:one")
    return w.emit("Range", [*bounds, one], node.name)


@export_rule(Pad)
def pad(node: Pad, w: OnnxWriter) -> OnnxValue:
    perm = w.order(node.x)
    widths = w.integers(
        (*permute(node.before, perm), *permute(node.after, perm)), f"{node.name}:pads"
    )
    kind = np.float32 if node.x.type.quant else node.type.dtype.numpy
    value = w.constant(np.array(node.value, kind), f"{node.name}:value")
    result = w.emit("Pad", [w.real(node.x, perm), widths, value], f"{node.name}:real")
    return w.rounded(node, result, perm)


@export_rule(AntialiasedResize)
def antialiased_resize(node: AntialiasedResize, w: OnnxWriter) -> OnnxValue:
    w.require(18)
    return resize(node, w, antialias=1, exclude_outside=int(node.excludes_outside))


@export_rule(Resize)
def resize(node: Resize, w: OnnxWriter, **attributes: int) -> OnnxValue:
    if node.coordinates == "half_pixel_symmetric":
        w.require(19)
    result = w.emit(
        "Resize",
        [w.real(node.x, IMAGE), "", *_resize_operands(node, w)],
        f"{node.name}:real",
        mode=node.mode,
        coordinate_transformation_mode=node.coordinates,
        nearest_mode=node.rounding or "round_prefer_floor",
        **attributes,
    )
    return w.rounded(node, result, IMAGE)


def _resize_operands(node: Resize, w: OnnxWriter) -> list[str]:
    """Sizes where their ratios are the scales, else the scales; of free sizes these where they
    round to the same."""
    before = node.x.type.shape[1:3]
    axes = list(zip(before, node.sizes, node.scales, strict=True))
    if any(map(is_free, (*before, *node.sizes))):
        if all(is_free(d) or decide(int(np.float32(d) * np.float32(s)) == n) for d, n, s in axes):
            return [w.constant(np.array([1, 1, *node.scales], np.float32), f"{node.name}:scales")]
        n, h, width, c = node.type.shape
        return ["", w.integers((n, c, h, width), f"{node.name}:sizes")]
    ratios = np.array(node.sizes) / before
    if (ratios.astype(np.float32) == np.array(node.scales, np.float32)).all():
        n, h, width, c = node.type.shape
        return ["", w.integers((n, c, h, width), f"{node.name}:sizes")]
    return [w.constant(np.array([1, 1, *node.scales], np.float32), f"{node.name}:scales")]


@export_rule(Gather)
def gather(node: Gather, w: OnnxWriter) -> OnnxValue:
    operands = [w.real(node.x), w.stored(node.indices)]
    result = w.emit("Gather", operands, f"{node.name}:real", axis=node.axis)
    return w.rounded(node, result, identity(node.type.rank))


@export_rule(Scatter)
def scatter(node: Scatter, w: OnnxWriter) -> OnnxValue:
    """Rows are coordinates of one axis: indices [n, 1]."""
    rows = w.reshaped(_as_int64(node.indices, w), (node.indices.type.size, 1), f"{node.name}:rows")
    operands = [w.real(node.x), rows, w.real(node.updates)]
    hint = f"{node.name}:real"
    result = w.emit("ScatterND", operands, hint, reduction=node.reduction)
    return w.rounded(node, result, identity(node.type.rank))


def _as_int64(node: Node, w: OnnxWriter) -> str:
    if node.type.dtype is DType.I64:
        return w.stored(node)
    return w.emit("Cast", [w.stored(node)], f"{node.name}:int64", to=onnx.TensorProto.INT64)


@export_rule(TopK)
def top_k(node: TopK, w: OnnxWriter) -> OnnxValue:
    """TopK; its indices, the second result of the ONNX operator."""
    operands = [w.real(node.x), w.integers([node.k], f"{node.name}:k")]
    results = [w.number(f"{node.name}:values"), w.number(node.name)]
    onnx_node = onnx.helper.make_node("TopK", operands, results, axis=-1, largest=int(node.largest))
    w.nodes.append(onnx_node)
    return OnnxValue(results[1], identity(node.type.rank))


@export_rule(Loop)
def loop(node: Loop, w: OnnxWriter) -> OnnxValue:
    """All results of a loop are written together."""
    key = (node.body, node.operands)
    if key not in w.loops:
        w.loops[key] = _write_loop(node, w)
    return OnnxValue(w.loops[key][node.output], identity(node.type.rank))


def _write_loop(node: Loop, w: OnnxWriter) -> list[str]:
    """Write an ONNX Loop; its results."""
    number, holds = w.number(f"{node.name}:trip"), w.number(f"{node.name}:holds")
    true = w.constant(np.array(True), f"{node.name}:true")
    start = true if not node.conditional else w.stored(node.carried[0])
    body = w.inside()
    body_inputs = [body.number(x.name) for x in node.body.inputs]
    body.held |= {
        x: {identity(x.type.rank): name}
        for x, name in zip(node.body.inputs, body_inputs, strict=True)
    }
    carried, last = len(node.carried), len(node.carried) + len(node.sliced)
    for name, x in zip(body_inputs[carried:last], node.sliced, strict=True):
        gather = onnx.helper.make_node("Gather", [_read_inside(x, w), number], [name], axis=0)
        body.nodes.append(gather)
    for name, x in zip(body_inputs[last:], node.captured, strict=True):
        body.nodes.append(onnx.helper.make_node("Identity", [_read_inside(x, w)], [name]))
    for inner in node.body.nodes:
        if inner not in node.body.inputs:
            body.write(inner)
    w.require(body.opset)
    ends = [body.emit("Identity", [body.stored(end)], end.name) for _, end in node.body.outputs]
    goes_on = body.emit("Identity", [ends[0] if node.conditional else true], f"{node.name}:on")
    condition = node.carried[0].type.fixed_shape if node.conditional else ()
    takes = [
        _info(number, DType.I64, ()),
        _info(holds, DType.BOOL, condition),
        *(_info(name, x.type.dtype) for name, x in zip(body_inputs, node.carried, strict=False)),
    ]
    body_outputs = zip(ends, node.body.outputs, strict=True)
    gives = [
        _info(goes_on, DType.BOOL, condition),
        *(_info(name, end.type.dtype) for name, (_, end) in body_outputs),
    ]
    graph = onnx.helper.make_graph(body.nodes, "body", takes, gives)
    results = [w.number(f"{node.name}:result") for _ in ends]
    trips = w.integers([node.trips], f"{node.name}:trips")
    inputs = [trips, start, *(w.stored(x) for x in node.carried)]
    w.nodes.append(onnx.helper.make_node("Loop", inputs, results, body=graph))
    return results


def _read_inside(x: Node, w: OnnxWriter) -> str:
    """A value that a body reads from outside.

    onnxruntime moves DequantizeLinear behind a Slice or Reshape, and ends the process where the
    body of a loop reads that.
    """
    name = w.stored(x)
    is_moved = any(name in written.output and written.op_type in MOVES for written in w.nodes)
    return w.opaque(name, x.name) if x.type.dtype.is_float and is_moved else name


def _info(name: str, dtype: DType, shape: FixedShape | None = None) -> onnx.ValueInfoProto:
    """A value of a body; its shape may be free, and is left out."""
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    return onnx.helper.make_tensor_value_info(name, element, shape)
