"""Nodes of an operator that is made of several: each is named behind the operator's result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantglow.frontend.nodes.context import Call, Unsupported
from quantglow.frontend.operators.indexing import iota
from quantglow.graph.node import Constant, Node
from quantglow.ops import Elementwise
from quantglow.ops.binary import Add, Mul, Sub
from quantglow.ops.convolution import Gemm, MatMul
from quantglow.ops.expression import Expr, arg, const
from quantglow.ops.expression import call as fn
from quantglow.ops.normalization import Softmax
from quantglow.ops.pooling import ReduceMean
from quantglow.ops.selection import Where
from quantglow.ops.shape import Concat, Expand, Reshape, Slice, Transpose
from quantglow.ops.unary import Reciprocal, Sqrt
from quantglow.symbolic.shapes import surely_equal
from quantglow.types import DType, ElementType


@dataclass(frozen=True)
class Steps:
    """Makes the nodes for one ``Call``."""

    call: Call

    def named(self, node: Node, position: int = 0) -> Node:
        """A node made here under the name of an output; others keep theirs."""
        is_made = node.name.startswith(f"{self.call.proto.output[0]}:")
        return replace(node, name=self.call.result_name(position)) if is_made else node

    def gives(self, position: int) -> bool:
        """Whether an output is asked for."""
        return any(self.call.proto.output[position : position + 1])

    # -- values

    def number(self, value: float) -> Node:
        return self.call.constant("number", np.array(value, np.float32))

    def zeros(self, shape: Sequence[int]) -> Node:
        return Expand(name=self.call.derived("zeros"), x=self.number(0.0), shape=tuple(shape))

    def filling(self, like: Node, shape: Sequence[int]) -> Node:
        """Zeros of the type of another value."""
        zero = np.zeros((), like.type.dtype.numpy)
        made = Constant(name=self.call.derived("filling"), value=zero)
        return Expand(name=self.call.derived("zeros"), x=made, shape=tuple(shape))

    def counting(self, shape: Sequence[int], axis: int) -> Node:
        """0, 1, … along one axis; the others are 1."""
        return iota(self.call, shape, axis)

    # -- layout

    def reshape(self, x: Node, *shape: int) -> Node:
        if surely_equal(x.type.shape, shape):
            return x
        return Reshape(name=self.call.derived("shape"), x=x, shape=shape)

    def transpose(self, x: Node, *perm: int) -> Node:
        return Transpose(name=self.call.derived("moved"), x=x, perm=perm)

    def part(self, x: Node, axis: int, start: int, size: int) -> Node:
        """Elements of one axis."""
        shape = x.type.shape
        axis %= len(shape)
        if start == 0 and surely_equal((shape[axis],), (size,)):
            return x
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        sizes = tuple(size if i == axis else d for i, d in enumerate(shape))
        ones = (1,) * len(shape)
        return Slice(name=self.call.derived("part"), x=x, starts=starts, sizes=sizes, steps=ones)

    def parts(self, x: Node, axis: int, sizes: Sequence[int]) -> list[Node]:
        """The axis cut in parts of these sizes."""
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [self.part(x, axis, s, size) for s, size in zip(starts, sizes, strict=True)]

    def joined(self, axis: int, *parts: Node) -> Node:
        made = tuple(parts)
        axis %= made[0].type.rank
        return Concat(name=self.call.derived("joined"), parts=made, axis=axis)

    def heads(self, x: Node, heads: int) -> Node:
        """``[batch, steps, heads * size]`` as ``[batch, heads, steps, size]``."""
        batch, steps, width = x.type.shape
        if width % heads:
            raise Unsupported(f"{width} columns do not make {heads} heads")
        return self.transpose(self.reshape(x, batch, steps, heads, width // heads), 0, 2, 1, 3)

    def rows_of_heads(self, x: Node) -> Node:
        """The inverse of ``heads``."""
        batch, heads, steps, size = x.type.shape
        return self.reshape(self.transpose(x, 0, 2, 1, 3), batch, steps, heads * size)

    # -- arithmetic

    def add(self, x: Node, y: Node) -> Node:
        return Add(name=self.call.derived("sum"), x=x, y=y)

    def sub(self, x: Node, y: Node) -> Node:
        return Sub(name=self.call.derived("difference"), x=x, y=y)

    def mul(self, x: Node, y: Node) -> Node:
        return Mul(name=self.call.derived("product"), x=x, y=y)

    def scaled(self, x: Node, factor: float) -> Node:
        return x if factor == 1 else self.mul(x, self.number(factor))

    def matmul(self, x: Node, y: Node) -> Node:
        return MatMul(name=self.call.derived("product"), x=x, y=y)

    def product(self, x: Node, position: int) -> Node:
        """``[batch, steps, width]`` times an operand ``[width, columns]``, which may be known."""
        call = self.call
        if not call.is_known(position):
            return self.matmul(x, call.node(position))
        *outer, width = x.type.shape
        weights = call.weights(position, "kn", lambda w: w)
        rows = self.reshape(x, math.prod(outer), width)
        made = Gemm(name=call.derived("product"), x=rows, w=weights)
        return self.reshape(made, *outer, weights.type.shape[1])

    def softmax(self, x: Node) -> Node:
        return Softmax(name=self.call.derived("shares"), x=x)

    def where(self, condition: Node, x: Node, y: Node) -> Node:
        return Where(name=self.call.derived("chosen"), condition=condition, x=x, y=y)

    def apply(self, value: Expr, args: Sequence[Node], dtype: DType) -> Node:
        """A function of each element."""
        return Elementwise(
            name=self.call.derived("value"),
            args=tuple(args),
            expression=value,
            out=ElementType(dtype),
        )

    def condition(self, value: Expr, *args: Node) -> Node:
        return self.apply(value, args, DType.BOOL)

    def integers(self, value: Expr, *args: Node) -> Node:
        return self.apply(value, args, DType.I64)

    def capped(self, x: Node, bound: float) -> Node:
        """``bound * tanh(x / bound)``"""
        inner = fn("tanh", fn("div", arg(0), const(bound)))
        return self.apply(fn("mul", const(bound), inner).rounded(), [x], DType.F32)

    def unit_length(self, x: Node, axes: Sequence[int], epsilon: float) -> tuple[Node, Node]:
        """x over its root mean square along axes, and the factor."""
        squares = self.mul(x, x)
        mean = ReduceMean(name=self.call.derived("mean"), x=squares, axes=tuple(axes))
        root = Sqrt(name=self.call.derived("root"), x=self.add(mean, self.number(epsilon)))
        inverse = Reciprocal(name=self.call.derived("inverse"), x=root)
        return self.mul(x, inverse), inverse
