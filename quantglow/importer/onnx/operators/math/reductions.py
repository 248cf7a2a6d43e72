"""Importers of reductions, and of running sums and products.

Reductions of floats have operators; those of integers, and Prod, are folded in halves.  A running
sum takes log2(n) steps, each of which doubles how far back the elements reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.math.integers import constant_like, convert, wrap
from quantglow.importer.onnx.operators.tensor.indexing import iota, reshape
from quantglow.importer.onnx.operators.tensor.shape import normal
from quantglow.importer.onnx.operators.tensor.slicing import along
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Concat, Elementwise, Expand, Pad, Reshape, Scatter, Slice
from quantglow.ir.ops.binary import Mul, Sub
from quantglow.ir.ops.expression import Expr, arg, const
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.functions import dtype_kind
from quantglow.ir.ops.pooling import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ir.ops.unary import Abs, Exp, Log, Sqrt
from quantglow.ir.symbolic.size import Dim, decide, fixed, is_free, prod
from quantglow.ir.types import DType, ElementType

FLOAT = ElementType(DType.F32)

_OPERATORS: dict[str, Callable[..., Node]] = {
    "ReduceMax": ReduceMax,
    "ReduceMean": ReduceMean,
    "ReduceMin": ReduceMin,
    "ReduceSum": ReduceSum,
}

_COMBINED = {
    "ReduceL1": "iadd",
    "ReduceMax": "imax",
    "ReduceMean": "iadd",
    "ReduceMin": "imin",
    "ReduceProd": "imul",
    "ReduceSum": "iadd",
    "ReduceSumSquare": "iadd",
}
_LOGICAL = {"ReduceMax": "or", "ReduceMin": "and"}

_ONE_BY_ONE = {"iadd": "add", "imax": "max", "imin": "min", "imul": "mul"}
"""Reductions of Scatter by the function that combines two values."""

_COMBINE = {"CumSum": ("add", 0), "CumProd": ("mul", 1)}


class Reduction:
    """A call with its axes, counted from the front and in order."""

    def __init__(self, call: Call, rank: int) -> None:
        """Axes are an attribute in old opsets, an operand in new ones; none means all."""
        axes = fixed(call.parameter("axes", 1) or ())
        if any(not -rank <= a < rank for a in axes):
            raise Unsupported(f"axes {list(axes)} are outside rank {rank}")
        self.call = call
        self.keepdims = bool(call.integer("keepdims", 1))
        self.nothing = not axes and bool(call.integer("noop_with_empty_axes", 0))
        self.axes = tuple(sorted({a % rank for a in axes or range(rank)} if rank else ()))

    def make(self, op: Callable[..., Node], x: Node, name: str, **changes: Any) -> Node:
        """A reduction operator of the graph over the axes."""
        arguments = {"axes": self.axes, "keepdims": self.keepdims, **changes}
        return op(name=name, x=x, **arguments)


@importer(*_OPERATORS)
def reduction(call: Call) -> Node:
    if not call.is_float(0):
        return _of_integers(call)
    x = call.node(0)
    reducer = Reduction(call, x.type.rank)
    return x if reducer.nothing else reducer.make(_OPERATORS[call.proto.op_type], x, call.result)


@importer("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")
def sum_transformed(call: Call) -> Node:
    """A function of the sum of functions; without axes to reduce, of the elements themselves."""
    if not call.is_float(0):
        return _of_integers(call)
    x, kind = call.node(0), call.proto.op_type
    reducer = Reduction(call, x.type.rank)
    if kind == "ReduceL1":
        x = Abs(name=call.derive("abs"), x=x)
    elif kind != "ReduceLogSum":
        x = Mul(name=call.derive("squares"), x=x, y=x)
    finish = {"ReduceL2": Sqrt, "ReduceLogSum": Log}.get(kind)
    if not reducer.nothing:
        x = reducer.make(ReduceSum, x, call.derive("sum") if finish else call.result)
    return finish(name=call.result, x=x) if finish else x


@importer("ReduceLogSumExp")
def log_sum_exp(call: Call) -> Node:
    """``m + log(sum(exp(x - m)))``, m the maximum, or 0 where that is infinite."""
    operand = x = call.tensor(0)
    reducer = Reduction(call, x.type.rank)
    if reducer.nothing:
        return x
    if not x.type.dtype.is_float:
        real = fn("float", arg(0))
        x = Elementwise(name=call.derive("float"), args=(x,), expression=real, out=FLOAT)
    largest = reducer.make(ReduceMax, x, call.derive("max"), keepdims=True)
    finite = fn("lt", fn("abs", arg(0)), const(float("inf")))
    bounded = fn("select", finite, arg(0), const(0))
    shift = Elementwise(name=call.derive("shift"), args=(largest,), expression=bounded, out=FLOAT)
    powers = Exp(name=call.derive("exp"), x=Sub(name=call.derive("shifted"), x=x, y=shift))
    total = reducer.make(ReduceSum, powers, call.derive("sum"))
    back = Reshape(name=call.derive("m"), x=shift, shape=total.type.shape)
    value, dtype = fn("add", arg(1), fn("log", arg(0))), operand.type.dtype
    if not dtype.is_float:
        value = convert(value, DType.F32, dtype)
    out = ElementType(dtype)
    return Elementwise(name=call.result, args=(total, back), expression=value, out=out)


@importer("ReduceProd")
def product(call: Call) -> Node:
    return _of_integers(call) if not call.is_float(0) else _fold(call, "mul", arg(0), arg(0))


def _of_integers(call: Call) -> Node:
    """Sums and products wrap; the mean is rounded towards zero.  For bool: any or all."""
    kind, dtype = call.proto.op_type, call.tensor(0).type.dtype
    functions = _LOGICAL if dtype is DType.BOOL else _COMBINED
    if kind not in functions:
        raise Unsupported(f"of {dtype} tensors")
    x = arg(0)
    before = {
        "ReduceL1": fn("imax", x, fn("isub", constant_like(dtype, 0), x)),
        "ReduceSumSquare": fn("imul", x, x),
    }
    after = x
    if kind == "ReduceMean":
        shape = call.tensor(0).type.shape
        count = prod(shape[axis] for axis in Reduction(call, len(shape)).axes)
        after = fn("idiv", x, constant_like(dtype, count))
    return _fold(call, functions[kind], before.get(kind, x), after)


def _one_by_one(call: Call, x: Node, axis: int, reduction: str) -> Node:
    """x with one element along an axis of any length: into its first one the others are combined,
    one after the other."""
    shape = x.type.shape
    outer, count, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])

    def rows(start: int, size: Dim) -> Node:
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        sizes = tuple(size if i == axis else d for i, d in enumerate(shape))
        ones = (1,) * len(shape)
        name = call.derive("part")
        part = Slice(name=name, x=x, starts=starts, sizes=sizes, steps=ones)
        return reshape(call, part, (outer * size, inner))

    each = Expand(name=call.derive("each"), x=iota(call, (outer, 1), 0), shape=(outer, count - 1))
    combined = Scatter(
        name=call.derive("combined"),
        x=rows(0, 1),
        indices=reshape(call, each, (outer * (count - 1),)),
        updates=rows(1, count - 1),
        reduction=reduction,
    )
    return reshape(call, combined, (*shape[:axis], 1, *shape[axis + 1 :]))


def _fold(call: Call, combine: str, before: Expr, after: Expr) -> Node:
    """``after(combine of before(x))``, halves of every axis combined until one element is left."""
    x = call.tensor(0)
    dtype, reducer = x.type.dtype, Reduction(call, x.type.rank)
    wide = {"f": DType.F32, "l": DType.I64, "b": DType.BOOL}.get(dtype_kind(dtype), DType.I32)
    element = ElementType(wide)

    def map_elements(value: Expr, *args: Node) -> Node:
        return Elementwise(name=call.derive("part"), args=args, expression=value, out=element)

    value: Node = map_elements(before, x) if before != arg(0) or wide is not dtype else x
    for axis in () if reducer.nothing else reducer.axes:
        if is_free(value.type.shape[axis]) and combine in _ONE_BY_ONE and wide is not DType.F32:
            value = _one_by_one(call, value, axis, _ONE_BY_ONE[combine])
        while decide((size := value.type.shape[axis]) > 1):
            size = int(size)
            half, odd = size // 2, size % 2
            ranges = [range(half), range(half, 2 * half), range(2 * half, size)]
            parts = [along(call.derive("half"), value, axis, r) for r in ranges[: 2 + odd]]
            value = map_elements(fn(combine, arg(0), arg(1)), *parts[:2])
            if odd:
                value = Concat(name=call.derive("rest"), parts=(value, parts[2]), axis=axis)
    last = after if wide is dtype else wrap(after, dtype)
    value = Elementwise(name=call.result, args=(value,), expression=last, out=ElementType(dtype))
    if reducer.keepdims or reducer.nothing:
        return value
    shape = tuple(d for i, d in enumerate(value.type.shape) if i not in reducer.axes)
    return Reshape(name=call.derive("shape"), x=value, shape=shape)


@importer(*_COMBINE)
def scan(call: Call) -> Node:
    """Combination of the elements up to each one; without itself if ``exclusive``, from the end if
    ``reverse``."""
    x = call.tensor(0)
    (signed_axis,) = (int(a) for a in call.array(1, "axis").reshape(-1))
    (axis,) = normal((signed_axis,), x.type.rank)
    function, neutral = _COMBINE[call.proto.op_type]
    dtype, length = x.type.dtype, x.type.shape[axis]
    combine = fn(function if dtype.is_float else f"i{function}", arg(0), arg(1))
    backwards = bool(call.integer("reverse", 0))
    if call.integer("exclusive", 0):
        x = shift(call, x, axis, 1, backwards, neutral)
    reach = 1
    while decide(reach < length) or not isinstance(x, Elementwise):
        other = shift(call, x, axis, reach, backwards, neutral)
        name = call.result if decide(2 * reach >= length) else call.derive("part")
        value = wrap(combine, dtype)
        x = Elementwise(name=name, args=(x, other), expression=value, out=ElementType(dtype))
        reach *= 2
    return x


def shift(call: Call, x: Node, axis: int, steps: int, backwards: bool, neutral: int) -> Node:
    """Each element moved on by so many steps; the neutral element moves in."""
    length = int(x.type.shape[axis])
    steps = min(steps, length)
    indices = range(steps, length) if backwards else range(length - steps)
    widths = tuple(steps if i == axis else 0 for i in range(x.type.rank))
    none = (0,) * x.type.rank
    before, after = (none, widths) if backwards else (widths, none)
    part = along(call.derive("earlier"), x, axis, indices)
    name = call.derive("shifted")
    return Pad(name=name, x=part, before=before, after=after, value=float(neutral))
