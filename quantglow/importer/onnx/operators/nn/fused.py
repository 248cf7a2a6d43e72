"""Importers of fused normalizations, activations and embeddings.

onnxruntime's tools fuse a sum with its normalization or activation, and the first layer of BERT
(EmbedLayerNormalization).  ``FusedNodes`` makes the nodes of an operator that is made of several,
each named behind the operator's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.nodes.values import as_float32
from quantglow.importer.onnx.operators.tensor.indexing import from_the_begin, iota
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import Elementwise
from quantglow.ir.ops.binary import Add, Mul, Sub, Where
from quantglow.ir.ops.convolution import Gemm, MatMul
from quantglow.ir.ops.expression import Expr, arg, const, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.normalization import LayerNormalization, Softmax
from quantglow.ir.ops.pooling import ReduceMean, ReduceSum
from quantglow.ir.ops.shape import Concat, Expand, Reshape, Slice, Transpose
from quantglow.ir.ops.unary import Gelu, Reciprocal, Sqrt, Swish
from quantglow.ir.symbolic.size import Dim, decide, prod, surely_equal
from quantglow.ir.types import DType, ElementType
from quantglow.support.arrays import Array

Table = Callable[[int], tuple[Node, Callable[[Node], Node]]]
"""Position of an operand -> a table [V, H], and what makes its rows float32."""

PARAMETERS = {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}
"""Operands of QEmbedLayerNormalization of 8 bits: where their scale and zero point are."""


@dataclass(frozen=True)
class FusedNodes:
    """Makes the nodes for one ``Call``."""

    call: Call

    def rename(self, node: Node, position: int = 0) -> Node:
        """A node made here under the name of an output; others keep theirs."""
        is_derived = node.name.startswith(f"{self.call.proto.output[0]}:")
        return replace(node, name=self.call.result_name(position)) if is_derived else node

    def has_output(self, position: int) -> bool:
        """Whether an output is asked for."""
        return any(self.call.proto.output[position : position + 1])

    # -- values

    def number(self, value: float) -> Node:
        return self.call.constant("number", np.array(value, np.float32))

    def zeros(self, shape: Sequence[Dim]) -> Node:
        return Expand(name=self.call.derive("zeros"), x=self.number(0.0), shape=tuple(shape))

    def fill(self, like: Node, shape: Sequence[Dim]) -> Node:
        """Zeros of the type of another value."""
        zero = np.zeros((), like.type.dtype.numpy)
        scalar = Constant(name=self.call.derive("filling"), value=zero)
        return Expand(name=self.call.derive("zeros"), x=scalar, shape=tuple(shape))

    def iota(self, shape: Sequence[Dim], axis: int) -> Node:
        """0, 1, … along one axis; the others are 1."""
        return iota(self.call, shape, axis)

    # -- layout

    def reshape(self, x: Node, *shape: Dim) -> Node:
        if surely_equal(x.type.shape, shape):
            return x
        return Reshape(name=self.call.derive("shape"), x=x, shape=shape)

    def transpose(self, x: Node, *perm: int) -> Node:
        return Transpose(name=self.call.derive("moved"), x=x, perm=perm)

    def part(self, x: Node, axis: int, start: Dim, size: Dim) -> Node:
        """Elements of one axis."""
        shape = x.type.shape
        axis %= len(shape)
        if decide(start == 0) and surely_equal((shape[axis],), (size,)):
            return x
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        sizes = tuple(size if i == axis else d for i, d in enumerate(shape))
        ones = (1,) * len(shape)
        return Slice(name=self.call.derive("part"), x=x, starts=starts, sizes=sizes, steps=ones)

    def parts(self, x: Node, axis: int, sizes: Sequence[Dim]) -> list[Node]:
        """The axis cut in parts of these sizes."""
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [self.part(x, axis, s, size) for s, size in zip(starts, sizes, strict=True)]

    def join(self, axis: int, *parts: Node) -> Node:
        axis %= parts[0].type.rank
        return Concat(name=self.call.derive("joined"), parts=parts, axis=axis)

    def heads(self, x: Node, heads: Dim) -> Node:
        """``[batch, steps, heads * size]`` as ``[batch, heads, steps, size]``."""
        batch, steps, width = x.type.shape
        if decide(width % heads != 0):
            raise Unsupported(f"{width} columns do not make {heads} heads")
        return self.transpose(self.reshape(x, batch, steps, heads, width // heads), 0, 2, 1, 3)

    def rows_of_heads(self, x: Node) -> Node:
        """The inverse of ``heads``."""
        batch, heads, steps, size = x.type.shape
        return self.reshape(self.transpose(x, 0, 2, 1, 3), batch, steps, heads * size)

    # -- arithmetic

    def add(self, x: Node, y: Node) -> Node:
        return Add(name=self.call.derive("sum"), x=x, y=y)

    def sub(self, x: Node, y: Node) -> Node:
        return Sub(name=self.call.derive("difference"), x=x, y=y)

    def mul(self, x: Node, y: Node) -> Node:
        return Mul(name=self.call.derive("product"), x=x, y=y)

    def scale(self, x: Node, factor: float) -> Node:
        return x if factor == 1 else self.mul(x, self.number(factor))

    def matmul(self, x: Node, y: Node) -> Node:
        return MatMul(name=self.call.derive("product"), x=x, y=y)

    def product(self, x: Node, position: int) -> Node:
        """``[batch, steps, width]`` times an operand ``[width, columns]``, which may be known."""
        call = self.call
        if not call.is_known(position):
            return self.matmul(x, call.node(position))
        *outer, width = x.type.shape
        weights = call.weights(position, "kn", lambda w: w)
        rows = self.reshape(x, prod(outer), width)
        product = Gemm(name=call.derive("product"), x=rows, w=weights)
        return self.reshape(product, *outer, weights.type.shape[1])

    def softmax(self, x: Node) -> Node:
        return Softmax(name=self.call.derive("shares"), x=x)

    def where(self, condition: Node, x: Node, y: Node) -> Node:
        return Where(name=self.call.derive("chosen"), condition=condition, x=x, y=y)

    def apply(self, value: Expr, args: Sequence[Node], dtype: DType) -> Node:
        """A function of each element."""
        return Elementwise(
            name=self.call.derive("value"),
            args=tuple(args),
            expression=value,
            out=ElementType(dtype),
        )

    def condition(self, value: Expr, *args: Node) -> Node:
        return self.apply(value, args, DType.BOOL)

    def integers(self, value: Expr, *args: Node) -> Node:
        return self.apply(value, args, DType.I64)

    def cap(self, x: Node, bound: float) -> Node:
        """``bound * tanh(x / bound)``"""
        inner = fn("tanh", fn("div", arg(0), const(bound)))
        return self.apply(fn("mul", const(bound), inner).rounded(), [x], DType.F32)

    def unit_length(self, x: Node, axes: Sequence[int], epsilon: float) -> tuple[Node, Node]:
        """x over its root mean square along axes, and the factor."""
        squares = self.mul(x, x)
        mean = ReduceMean(name=self.call.derive("mean"), x=squares, axes=tuple(axes))
        root = Sqrt(name=self.call.derive("root"), x=self.add(mean, self.number(epsilon)))
        inverse = Reciprocal(name=self.call.derive("inverse"), x=root)
        return self.mul(x, inverse), inverse


@importer("RMSNormalization", "SimplifiedLayerNormalization")
def root_mean_square(call: Call) -> list[Node]:
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over all axes from ``axis`` on."""
    steps = FusedNodes(call)
    return _normalize(steps, call.node(0), 1)


@importer(f"{MICROSOFT}.SkipSimplifiedLayerNormalization")
def root_mean_square_of_sum(call: Call) -> list[Node]:
    """``root_mean_square`` of the sum of both operands and a bias; the sum where asked for."""
    steps = FusedNodes(call)
    total = _skip_sum(steps, 3)
    if any(call.proto.output[1:3]):
        raise Unsupported("it gives its mean or its deviation")
    return [*_normalize(steps, total, 2), total, total, total][:4]


def _normalize(steps: FusedNodes, x: Node, scale: int) -> list[Node]:
    """x over its root mean square, times the operand ``scale``; the factor where it is wanted."""
    call, rank = steps.call, x.type.rank
    axis = call.integer("axis", -1)
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is outside rank {rank}")
    axes = range(axis % rank, rank)
    unit, inverse = steps.unit_length(x, axes, call.number("epsilon", 1e-5))
    scaled = steps.rename(steps.mul(unit, call.node(scale)))
    gives_factor = call.proto.op_type == "SimplifiedLayerNormalization" and steps.has_output(1)
    return [scaled, steps.rename(inverse, 1)] if gives_factor else [scaled]


@importer(f"{MICROSOFT}.SkipLayerNormalization")
def layer_normalization_of_sum(call: Call) -> list[Node]:
    """LayerNormalization of the sum of both operands and a bias; the sum where it is asked for."""
    steps = FusedNodes(call)
    total = _skip_sum(steps, 4)
    if any(call.proto.output[1:3]):
        raise Unsupported("it gives its mean or its deviation")
    normalized = LayerNormalization(
        name=call.result,
        x=total,
        gamma=call.weights(2, "gamma", lambda a: a),
        beta=call.weights(3, "beta", lambda a: a) if call.has(3) else None,
        epsilon=call.number("epsilon", 1e-12),
    )
    return [normalized, total, total, total][: len(call.proto.output)]


def _skip_sum(steps: FusedNodes, bias: int) -> Node:
    """Both operands and the bias, where there is one: the fourth output."""
    call = steps.call
    total = steps.add(call.node(0), call.node(1))
    if call.has(bias):
        total = steps.add(total, call.node(bias))
    return steps.rename(total, 3) if steps.has_output(3) else total


@importer(f"{MICROSOFT}.Gelu", f"{MICROSOFT}.BiasGelu", f"{MICROSOFT}.FastGelu")
def gelu(call: Call) -> Node:
    """Gelu of x, or of x plus a bias; FastGelu is the approximation with tanh."""
    steps = FusedNodes(call)
    x = steps.add(call.node(0), call.node(1)) if call.has(1) else call.node(0)
    return Gelu(name=call.result, x=x, approximate=call.proto.op_type == "FastGelu")


@importer(f"{MICROSOFT}.QuickGelu")
def quick_gelu(call: Call) -> Node:
    """``x * sigmoid(alpha * x)``"""
    return Swish(name=call.result, x=call.node(0), alpha=call.number("alpha", 1.702))


@importer(f"{MICROSOFT}.EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> list[Node]:
    """LayerNormalization of the sum of embeddings [B, T, H]; the number of steps that the mask
    leaves of each sample [B]; the sum."""
    gamma, beta = (call.weights(position, "f32", lambda a: a) for position in (5, 6))
    steps = FusedNodes(call)
    total = _embed(steps, lambda position: (call.node(position), lambda rows: rows))
    total = steps.rename(total, 2) if steps.has_output(2) else total
    return outputs(steps, total, gamma, beta)


@importer(f"{MICROSOFT}.QEmbedLayerNormalization")
def q_embed_layer_normalization(call: Call) -> list[Node]:
    """EmbedLayerNormalization of operands of 8 bits, without the sum."""
    steps = FusedNodes(call)

    def table(position: int) -> tuple[Node, Callable[[Node], Node]]:
        codes = np.ascontiguousarray(call.array(position, "table"))
        scale, point = parameters(call, position)
        real = fn("mul", fn("sub", fn("float", arg(0)), const(point)), const(scale))
        constant = Constant(name=call.derive("codes"), value=codes)
        return constant, lambda rows: steps.apply(real, [rows], DType.F32)

    gamma, beta = (call.constant("f32", reals(call, position)) for position in (5, 6))
    total = _embed(steps, table)
    return outputs(steps, total, gamma, beta)


def parameters(call: Call, position: int) -> tuple[float, int]:
    """Scale and zero point of an operand.  Raises ``ValueError`` where it has several."""
    scale, point = (call.array(p, "quantization parameter") for p in PARAMETERS[position])
    return float(as_float32(scale).reshape(())), int(point.reshape(()))


def reals(call: Call, position: int) -> Array:
    scale, point = parameters(call, position)
    codes = call.array(position, "parameter").astype(np.float32)
    return (codes - np.float32(point)) * np.float32(scale)


def _embed(steps: FusedNodes, table: Table) -> Node:
    """The sum of the embeddings of words, positions and, where there are any, segments."""
    call = steps.call

    def rows(position: int, indices: Node) -> Node:
        entries, real = table(position)
        checked = from_the_begin(call, indices, entries.type.shape[0])
        return real(Gather(name=call.derive("rows"), x=entries, indices=checked, axis=0))

    total = steps.add(rows(2, call.tensor(0)), positions(steps, table, rows))
    return steps.add(total, rows(4, call.tensor(1))) if call.has(1) else total


def positions(steps: FusedNodes, table: Table, rows: Callable[[int, Node], Node]) -> Node:
    """Embeddings of positions that are given, or of 0, 1, …"""
    call = steps.call
    if call.proto.op_type == "EmbedLayerNormalization" and call.has(8):
        return rows(3, call.tensor(8))
    entries, real = table(3)
    return real(steps.part(entries, 0, 0, call.shape(0)[1]))


def outputs(steps: FusedNodes, total: Node, gamma: Node, beta: Node) -> list[Node]:
    """The three results; any node stands for one that is not asked for."""
    epsilon = steps.call.number("epsilon", 1e-12)
    normalized = LayerNormalization(
        name=steps.call.result, x=total, gamma=gamma, beta=beta, epsilon=epsilon
    )
    return [normalized, _unmask(steps) if steps.has_output(1) else total, total]


def _unmask(steps: FusedNodes) -> Node:
    """Number of ones of the mask [B, T] in each sample; 0 without a mask."""
    call = steps.call
    if not call.has(7):
        return steps.rename(steps.fill(call.tensor(0), call.shape(0)[:1]), 1)
    is_one = fn("eq", fn("int64", arg(0)), lconst(1))
    ones = steps.apply(fn("select", is_one, const(1), const(0)), [call.tensor(7)], DType.F32)
    count = ReduceSum(name=call.derive("count"), x=ones, axes=(1,), keepdims=False)
    return steps.rename(steps.apply(fn("int", arg(0)), [count], DType.I32), 1)
