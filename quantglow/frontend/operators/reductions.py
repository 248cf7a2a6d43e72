"""Importers of reductions.  Floats have operators; integers are folded in halves, as is Prod."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.indexing import iota, reshaped
from quantglow.frontend.operators.integers import constant_like, converted, wrapped
from quantglow.frontend.operators.slicing import along
from quantglow.graph.node import Node
from quantglow.ops import Concat, Elementwise, Expand, Reshape, Scatter, Slice
from quantglow.ops.binary import Mul, Sub
from quantglow.ops.expression import Expr, arg, const
from quantglow.ops.expression import call as fn
from quantglow.ops.functions import kind_of
from quantglow.ops.pooling import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from quantglow.ops.unary import Abs, Exp, Log, Sqrt
from quantglow.symbolic.size import is_free
from quantglow.types import DType, ElementType

FLOAT = ElementType(DType.F32)

_OPERATORS: dict[str, Callable[..., Node]] = {
    "ReduceMax": ReduceMax,
    "ReduceMean": ReduceMean,
    "ReduceMin": ReduceMin,
    "ReduceSum": ReduceSum,
}


class Reduction:
    """A call with its axes, counted from the front and in order."""

    def __init__(self, call: Call, rank: int) -> None:
        """Axes are an attribute in old opsets, an operand in new ones; none means all."""
        axes = call.parameter("axes", 1)
        if any(not -rank <= a < rank for a in axes or ()):
            raise Unsupported(f"axes {list(axes or ())} are outside rank {rank}")
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
        return of_integers(call)
    x = call.node(0)
    wanted = Reduction(call, x.type.rank)
    return x if wanted.nothing else wanted.make(_OPERATORS[call.proto.op_type], x, call.result)


@importer("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")
def transformed_sum(call: Call) -> Node:
    """A function of the sum of functions; without axes to reduce, of the elements themselves."""
    if not call.is_float(0):
        return of_integers(call)
    x, kind = call.node(0), call.proto.op_type
    wanted = Reduction(call, x.type.rank)
    if kind == "ReduceL1":
        x = Abs(name=call.derived("abs"), x=x)
    elif kind != "ReduceLogSum":
        x = Mul(name=call.derived("squares"), x=x, y=x)
    finish = {"ReduceL2": Sqrt, "ReduceLogSum": Log}.get(kind)
    if not wanted.nothing:
        x = wanted.make(ReduceSum, x, call.derived("sum") if finish else call.result)
    return finish(name=call.result, x=x) if finish else x


@importer("ReduceLogSumExp")
def log_sum_exp(call: Call) -> Node:
    """``m + log(sum(exp(x - m)))``, m the maximum, or 0 where that is infinite."""
    given = x = call.tensor(0)
    wanted = Reduction(call, x.type.rank)
    if wanted.nothing:
        return x
    if not x.type.dtype.is_float:
        real = fn("float", arg(0))
        x = Elementwise(name=call.derived("float"), args=(x,), expression=real, out=FLOAT)
    largest = wanted.make(ReduceMax, x, call.derived("max"), keepdims=True)
    finite = fn("lt", fn("abs", arg(0)), const(float("inf")))
    bounded = fn("select", finite, arg(0), const(0))
    shift = Elementwise(name=call.derived("shift"), args=(largest,), expression=bounded, out=FLOAT)
    powers = Exp(name=call.derived("exp"), x=Sub(name=call.derived("shifted"), x=x, y=shift))
    total = wanted.make(ReduceSum, powers, call.derived("sum"))
    back = Reshape(name=call.derived("m"), x=shift, shape=total.type.shape)
    value, dtype = fn("add", arg(1), fn("log", arg(0))), given.type.dtype
    if not dtype.is_float:
        value = converted(value, DType.F32, dtype)
    out = ElementType(dtype)
    return Elementwise(name=call.result, args=(total, back), expression=value, out=out)


@importer("ReduceProd")
def product(call: Call) -> Node:
    return of_integers(call) if not call.is_float(0) else folded(call, "mul", arg(0), arg(0))


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


def of_integers(call: Call) -> Node:
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
        count = 1
        for axis in Reduction(call, len(shape)).axes:
            count *= shape[axis]
        after = fn("idiv", x, constant_like(dtype, count))
    return folded(call, functions[kind], before.get(kind, x), after)


_ONE_BY_ONE = {"iadd": "add", "imax": "max", "imin": "min", "imul": "mul"}
"""Reductions of Scatter by the function that combines two values."""


def one_by_one(call: Call, x: Node, axis: int, reduction: str) -> Node:
    """x with one element along an axis of any length: into its first one the others are combined,
    one after the other."""
    shape = x.type.shape
    outer, count, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def rows(start: int, size: int) -> Node:
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        sizes = tuple(size if i == axis else d for i, d in enumerate(shape))
        ones = (1,) * len(shape)
        name = call.derived("part")
        part = Slice(name=name, x=x, starts=starts, sizes=sizes, steps=ones)
        return reshaped(call, part, (outer * size, inner))

    each = Expand(name=call.derived("each"), x=iota(call, (outer, 1), 0), shape=(outer, count - 1))
    made = Scatter(
        name=call.derived("combined"),
        x=rows(0, 1),
        indices=reshaped(call, each, (outer * (count - 1),)),
        updates=rows(1, count - 1),
        reduction=reduction,
    )
    return reshaped(call, made, (*shape[:axis], 1, *shape[axis + 1 :]))


def folded(call: Call, combine: str, before: Expr, after: Expr) -> Node:
    """``after(combine of before(x))``, halves of every axis combined until one element is left."""
    x = call.tensor(0)
    dtype, wanted = x.type.dtype, Reduction(call, x.type.rank)
    wide = {"f": DType.F32, "l": DType.I64, "b": DType.BOOL}.get(kind_of(dtype), DType.I32)
    element = ElementType(wide)

    def mapped(value: Expr, *args: Node) -> Node:
        return Elementwise(name=call.derived("part"), args=args, expression=value, out=element)

    value: Node = mapped(before, x) if before != arg(0) or wide is not dtype else x
    for axis in () if wanted.nothing else wanted.axes:
        if is_free(value.type.shape[axis]) and combine in _ONE_BY_ONE and wide is not DType.F32:
            value = one_by_one(call, value, axis, _ONE_BY_ONE[combine])
        while (size := value.type.shape[axis]) > 1:
            half, odd = size // 2, size % 2
            ranges = [range(half), range(half, 2 * half), range(2 * half, size)]
            parts = [along(call.derived("half"), value, axis, r) for r in ranges[: 2 + odd]]
            value = mapped(fn(combine, arg(0), arg(1)), *parts[:2])
            if odd:
                value = Concat(name=call.derived("rest"), parts=(value, parts[2]), axis=axis)
    last = after if wide is dtype else wrapped(after, dtype)
    value = Elementwise(name=call.result, args=(value,), expression=last, out=ElementType(dtype))
    if wanted.keepdims or wanted.nothing:
        return value
    kept = tuple(d for i, d in enumerate(value.type.shape) if i not in wanted.axes)
    return Reshape(name=call.derived("shape"), x=value, shape=kept)
