"""Importers of EmbedLayerNormalization and QEmbedLayerNormalization: the first layer of BERT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantglow.foreign_types import Array
from quantglow.frontend.nodes.context import Call, importer
from quantglow.frontend.nodes.values import as_float32
from quantglow.frontend.operators.indexing import from_the_begin
from quantglow.frontend.operators.steps import Steps
from quantglow.graph.node import Constant, Node
from quantglow.ops.expression import arg, const, lconst
from quantglow.ops.expression import call as fn
from quantglow.ops.indexing import Gather
from quantglow.ops.normalization import LayerNormalization
from quantglow.ops.pooling import ReduceSum
from quantglow.types import DType

Table = Callable[[int], tuple[Node, Callable[[Node], Node]]]
"""Position of an operand -> a table [V, H], and what makes its rows float32."""

PARAMETERS = {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}
"""Operands of QEmbedLayerNormalization of 8 bits: where their scale and zero point are."""


@importer("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> list[Node]:
    """LayerNormalization of the sum of embeddings [B, T, H]; the number of steps that the mask
    leaves of each sample [B]; the sum."""
    gamma, beta = (call.weights(position, "f32", lambda a: a) for position in (5, 6))
    steps = Steps(call)
    total = embedded(steps, lambda position: (call.node(position), lambda rows: rows))
    total = steps.named(total, 2) if steps.gives(2) else total
    return outputs(steps, total, gamma, beta)


@importer("com.microsoft.QEmbedLayerNormalization")
def q_embed_layer_normalization(call: Call) -> list[Node]:
    """The same of operands of 8 bits, without the sum."""
    steps = Steps(call)

    def table(position: int) -> tuple[Node, Callable[[Node], Node]]:
        codes = np.ascontiguousarray(call.array(position, "table"))
        scale, point = parameters(call, position)
        real = fn("mul", fn("sub", fn("float", arg(0)), const(point)), const(scale))
        made = Constant(name=call.derived("codes"), value=codes)
        return made, lambda rows: steps.apply(real, [rows], DType.F32)

    gamma, beta = (call.constant("f32", reals(call, position)) for position in (5, 6))
    total = embedded(steps, table)
    return outputs(steps, total, gamma, beta)


def parameters(call: Call, position: int) -> tuple[float, int]:
    """Scale and zero point of an operand.  Raises ``ValueError`` where it has several."""
    scale, point = (call.array(p, "quantization parameter") for p in PARAMETERS[position])
    return float(as_float32(scale).reshape(())), int(point.reshape(()))


def reals(call: Call, position: int) -> Array:
    scale, point = parameters(call, position)
    codes = call.array(position, "parameter").astype(np.float32)
    return (codes - np.float32(point)) * np.float32(scale)


def embedded(steps: Steps, table: Table) -> Node:
    """The sum of the embeddings of words, positions and, where there are any, segments."""
    call = steps.call

    def rows(position: int, indices: Node) -> Node:
        made, real = table(position)
        taken = from_the_begin(call, indices, made.type.shape[0])
        return real(Gather(name=call.derived("rows"), x=made, indices=taken, axis=0))

    total = steps.add(rows(2, call.tensor(0)), positions(steps, table, rows))
    return steps.add(total, rows(4, call.tensor(1))) if call.has(1) else total


def positions(steps: Steps, table: Table, rows: Callable[[int, Node], Node]) -> Node:
    """Embeddings of positions that are given, or of 0, 1, …"""
    call = steps.call
    if call.proto.op_type == "EmbedLayerNormalization" and call.has(8):
        return rows(3, call.tensor(8))
    made, real = table(3)
    return real(steps.part(made, 0, 0, call.shape(0)[1]))


def outputs(steps: Steps, total: Node, gamma: Node, beta: Node) -> list[Node]:
    """The three results; any node stands for one that is not asked for."""
    epsilon = steps.call.number("epsilon", 1e-12)
    made = LayerNormalization(
        name=steps.call.result, x=total, gamma=gamma, beta=beta, epsilon=epsilon
    )
    return [made, unmasked(steps) if steps.gives(1) else total, total]


def unmasked(steps: Steps) -> Node:
    """How often the mask [B, T] is 1 in each sample; 0 without a mask."""
    call = steps.call
    if not call.has(7):
        return steps.named(steps.filling(call.tensor(0), call.shape(0)[:1]), 1)
    is_one = fn("eq", fn("int64", arg(0)), lconst(1))
    ones = steps.apply(fn("select", is_one, const(1), const(0)), [call.tensor(7)], DType.F32)
    count = ReduceSum(name=call.derived("count"), x=ones, axes=(1,), keepdims=False)
    return steps.named(steps.apply(fn("int", arg(0)), [count], DType.I32), 1)
