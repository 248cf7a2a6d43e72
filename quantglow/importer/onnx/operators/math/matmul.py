"""Importers of Gemm, MatMul and Einsum.

Products with a known 2-D right side become ``Gemm``.  Operands of an Einsum are contracted from the
left, two at a time, by MatMul or Mul.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from quantglow.importer.onnx.nodes.context import Call, importer, integer_node
from quantglow.importer.onnx.nodes.values import Blocked, Coded
from quantglow.importer.onnx.operators.groupwise import group
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Expand, MatMul, Mul, ReduceSum, Reshape, Slice, Transpose
from quantglow.ir.ops.binary import Add
from quantglow.ir.ops.convolution import Gemm
from quantglow.ir.ops.groupwise import PackedWeights
from quantglow.ir.symbolic.size import Dim, Shape, decide_equal, decide_max, prod
from quantglow.support.arrays import Array

BROADCAST = string.digits
"""Labels of the axes that an ellipsis stands for, the last axis last."""


@dataclass(frozen=True)
class Labeled:
    """A value with one letter for each axis."""

    node: Node
    labels: str

    def size(self, label: str) -> Dim:
        return self.node.type.shape[self.labels.index(label)]


@importer("Einsum")
def einsum(call: Call) -> Node:
    equation = call.text("equation", "").replace(" ", "")
    terms, output = _parse(equation, [node.type.rank for node in call.nodes()])
    writer = EinsumContraction(call)
    values = [
        writer.diagonal(Labeled(node, term)) for node, term in zip(call.nodes(), terms, strict=True)
    ]
    sizes: dict[str, Dim] = {}
    for value in values:
        for label in value.labels:
            sizes[label] = decide_max(sizes.get(label, 1), value.size(label))
    result, *operands = (writer.widen(value, sizes) for value in values)
    for position, value in enumerate(operands, 1):
        later = set(output).union(*(v.labels for v in operands[position:]))
        result = writer.product(writer.sum_out(result, later | set(value.labels)), value, later)
    result = writer.sum_out(result, set(output))
    return writer.order(result, output, call.result).node


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Labels of each operand and of the result, an ellipsis spelled out.  Raises ``ValueError``."""
    left, _, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or not re.fullmatch(r"[A-Za-z.,]*", left + right):
        raise ValueError(f"the equation {equation!r} does not fit {len(ranks)} operands")
    widest = 0
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        missing = rank - len(term.replace("...", ""))
        if missing < 0 or (missing and "..." not in term) or missing > len(BROADCAST):
            raise ValueError(f"{term!r} does not name the {rank} axes of operand {i}")
        widest = max(widest, missing)
        terms[i] = term.replace("...", BROADCAST[len(BROADCAST) - missing :])
    every = BROADCAST[len(BROADCAST) - widest :]
    if "->" not in equation:
        letters = "".join(terms)
        right = every + "".join(sorted(c for c in set(letters) - {*every} if letters.count(c) == 1))
    output = right.replace("...", every)
    if len(set(output)) != len(output) or not set(output) <= set("".join(terms)):
        raise ValueError(f"the result of {equation!r} repeats a label, or has one of its own")
    return terms, output


@dataclass(frozen=True)
class EinsumContraction:
    """Makes the nodes of one Einsum."""

    call: Call

    def diagonal(self, value: Labeled) -> Labeled:
        """Each repeated label once: of its two axes, joined, every (n + 1)-th element."""
        for label in dict.fromkeys(value.labels):
            while value.labels.count(label) > 1:
                remaining = value.labels.replace(label, "", 2)
                n = value.size(label)
                first = value.labels.index(label)
                pair = [first, value.labels.index(label, first + 1)]
                others = [i for i in range(len(value.labels)) if i not in pair]
                moved = self.transpose(value.node, [*others, *pair])
                shape = moved.type.shape[:-2]
                flat = self.reshape(moved, (*shape, n * n))
                ends = (*(0 for _ in shape), 0)
                steps = (*(1 for _ in shape), n + 1)
                name = self.call.derive("diagonal")
                node = Slice(name=name, x=flat, starts=ends, sizes=(*shape, n), steps=steps)
                value = Labeled(node, remaining + label)
        return value

    def widen(self, value: Labeled, sizes: dict[str, Dim]) -> Labeled:
        """Axes of 1 broadcast to what other operands have."""
        shape = tuple(sizes[label] for label in value.labels)
        if decide_equal(shape, value.node.type.shape):
            return value
        wide = Expand(name=self.call.derive("wide"), x=value.node, shape=shape)
        return Labeled(wide, value.labels)

    def sum_out(self, value: Labeled, needed: set[str]) -> Labeled:
        """Without the axes nobody needs."""
        axes = tuple(i for i, label in enumerate(value.labels) if label not in needed)
        if not axes:
            return value
        name = self.call.derive("sum")
        node = ReduceSum(name=name, x=value.node, axes=axes, keepdims=False)
        return Labeled(node, "".join(label for label in value.labels if label in needed))

    def product(self, x: Labeled, y: Labeled, later: set[str]) -> Labeled:
        """x * y, summed over the labels of both that are not needed later."""
        y = self.sum_out(y, later | set(x.labels))
        shared = [label for label in x.labels if label in y.labels]
        batch = "".join(label for label in shared if label in later)
        inner = "".join(label for label in shared if label not in later)
        rows = "".join(label for label in x.labels if label not in y.labels)
        columns = "".join(label for label in y.labels if label not in x.labels)
        each = [batch] if batch else []  # no axis before rows, which are then those of samples
        left = self.group(x, *each, rows, inner)
        right = self.group(y, *each, inner, columns)
        name = self.call.derive("product")
        product = MatMul(name=name, x=left, y=right) if inner else Mul(name=name, x=left, y=right)
        shape = (*(x.size(c) for c in batch + rows), *(y.size(c) for c in columns))
        return Labeled(self.reshape(product, shape), batch + rows + columns)

    def group(self, value: Labeled, *groups: str) -> Node:
        """The axes in this order, each group joined."""
        ordered = self.order(value, "".join(groups))
        shape = tuple(prod(value.size(label) for label in group) for group in groups)
        return self.reshape(ordered.node, shape)

    def order(self, value: Labeled, labels: str, name: str = "") -> Labeled:
        if value.labels == labels and not name:
            return value
        perm = tuple(value.labels.index(label) for label in labels)
        name = name or self.call.derive("moved")
        return Labeled(Transpose(name=name, x=value.node, perm=perm), labels)

    def transpose(self, x: Node, perm: Iterable[int]) -> Node:
        return Transpose(name=self.call.derive("moved"), x=x, perm=tuple(perm))

    def reshape(self, x: Node, shape: Shape) -> Node:
        if decide_equal(x.type.shape, shape):
            return x
        return Reshape(name=self.call.derive("as"), x=x, shape=shape)


@importer("Gemm")
def gemm(call: Call) -> Node:
    """``alpha * A' @ B' + beta * C``, A' and B' transposed on demand."""
    x = transpose(call, call.node(0), "transA", "a")
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    adds = call.has(2) and beta != 0
    has_row = adds and call.is_known(2) and _is_row(call.array(2, "C"))
    packed = _stored_weights(call, alpha, call.integer("transB", 0))
    if packed is not None and (has_row or not adds):
        b = row(call, len(packed.codes), beta) if has_row else None
        return group(call, x, packed, b, call.result)
    if has_row and call.is_known(1):
        w = _kn_weights(call, alpha)
        return Gemm(name=call.result, x=x, w=w, b=row(call, w.type.shape[1], beta))
    name = call.derive("product") if adds else call.result
    if call.is_known(1):
        product: Node = Gemm(name=name, x=x, w=_kn_weights(call, alpha))
    else:
        y = transpose(call, call.node(1), "transB", "b")
        product = MatMul(name=name, x=scale(call, x, alpha, "alpha"), y=y)
    if not adds:
        return product
    return Add(name=call.result, x=product, y=scale(call, call.node(2), beta, "beta"))


def _stored_weights(call: Call, alpha: float, depth_axis: int) -> PackedWeights | None:
    """The second operand, times ``alpha``, if it has packed codes with K along this axis."""
    value = call.value(1)
    if not isinstance(value, Blocked) or value.depth_axis != depth_axis:
        return None
    return value.packed._replace(scales=value.packed.scales * np.float32(alpha))


def _is_row(c: Array) -> bool:
    """Whether C is the same for every row of the result."""
    return c.size == 1 or c.shape[-1] == c.size


def row(call: Call, columns: Dim, beta: float) -> Node:
    """``beta * C`` as [N]."""

    def layout(c: Array) -> Array:
        return np.broadcast_to(c.reshape(-1), (int(columns),))

    if beta == 1:
        return call.weights(2, "row", layout)
    return call.constant("bias", layout(call.array(2, "C")) * np.float32(beta))


def _kn_weights(call: Call, alpha: float) -> Node:
    """``alpha * B'`` as [K, N]."""
    flip = call.integer("transB", 0)

    def layout(b: Array) -> Array:
        return b.T if flip else b

    if alpha == 1:
        return call.weights(1, "kn", layout)
    value = call.value(1)
    if isinstance(value, Coded) and (times := value.laid_out(layout).times(alpha)) is not None:
        return integer_node(times, call.derive("kn"), call.scope)
    b = layout(call.array(1, "B"))
    return call.constant("kn", b * b.dtype.type(alpha))


def transpose(call: Call, x: Node, flag: str, tag: str) -> Node:
    return Transpose(name=call.derive(tag), x=x, perm=(1, 0)) if call.integer(flag, 0) else x


def scale(call: Call, x: Node, factor: float, tag: str) -> Node:
    if factor == 1:
        return x
    return Mul(name=call.derive(tag), x=x, y=call.constant(f"{tag}-factor", np.array(factor)))


@importer("MatMul")
def matmul(call: Call) -> Node:
    """Operands of rank 1 count as a row (left) or a column (right) that the result drops."""
    left, right = call.shape(0), call.shape(1)
    if call.is_known(1) and len(right) <= 2:
        return _product_with_weights(call)
    x, y = call.node(0), call.node(1)
    if len(left) > 1 and len(right) > 1:
        return MatMul(name=call.result, x=x, y=y)
    if len(left) == 1:
        x = Reshape(name=call.derive("row"), x=x, shape=(1, *left))
    if len(right) == 1:
        y = Reshape(name=call.derive("column"), x=y, shape=(*right, 1))
    product = MatMul(name=call.result, x=x, y=y)
    shape = list(product.type.shape)
    if len(left) == 1:
        del shape[-2]
    if len(right) == 1:
        del shape[-1]
    return Reshape(name=call.derive("shape"), x=product, shape=tuple(shape))


def _product_with_weights(call: Call) -> Node:
    """x [..., K] as rows times [K, N]."""
    x, right = call.node(0), call.shape(1)
    *batch, k = x.type.shape
    if len(batch) != 1:
        x = Reshape(name=call.derive("rows"), x=x, shape=(prod(batch), k))
    product: Node
    if (packed := _stored_weights(call, 1.0, 0)) is not None:
        product = group(call, x, packed, None, call.result)
    else:
        w = call.weights(1, "kn", lambda y: y.reshape(y.shape[0], -1))
        product = Gemm(name=call.result, x=x, w=w)
    shape = (*batch, *right[1:])
    if decide_equal(shape, product.type.shape):
        return product
    return Reshape(name=call.derive("shape"), x=product, shape=shape)
