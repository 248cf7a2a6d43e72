"""Importers of attention and rotary positions as onnxruntime's tools write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.attention import (
    Causal,
    Scores,
    attended,
    looked_up,
    turned,
)
from quantglow.frontend.operators.integer_sums import (
    ZeroPoint,
    centred_weights,
    rows_times_weights,
    whole,
)
from quantglow.frontend.operators.steps import Steps
from quantglow.graph.node import Node
from quantglow.ops.expression import arg, lconst
from quantglow.ops.expression import call as fn
from quantglow.types import DType

HIDDEN = -10_000.0
"""Default term of the scores of padding."""


@importer("com.microsoft.RotaryEmbedding")
def rotary_embedding(call: Call) -> Node:
    """x ``[batch, heads, steps, size]`` or ``[batch, steps, heads * size]`` at positions
    ``[batch, steps]``, or from one position on."""
    steps = Steps(call)
    if call.integer("is_packed_batching", 0):
        raise Unsupported("samples of a batch are packed")
    x, positions = call.node(0), call.tensor(1)
    is_flat = x.type.rank == 3
    rows = x.type.shape[1 if is_flat else 2]
    if positions.type.size == 1:
        first = steps.reshape(positions, 1, 1)
        value = fn("iadd", arg(0), fn("int64", arg(1)))
        positions = steps.integers(value, steps.counting((1, rows), 1), first)
    cosine, sine = (looked_up(steps, call.node(i), positions) for i in (2, 3))
    pairs = cosine.type.shape[-1]
    width = call.integer("rotary_embedding_dim", 0)
    heads = call.integer("num_heads", 0)
    if is_flat:
        hidden = x.type.shape[2]
        x = steps.heads(x, heads if width else hidden // (2 * pairs))
    found = turned(steps, x, cosine, sine, bool(call.integer("interleaved", 0)))
    return steps.named(steps.rows_of_heads(found) if is_flat else found)


@importer("com.microsoft.MultiHeadAttention")
def multi_head_attention(call: Call) -> list[Node]:
    """Queries, keys and values apart, or packed in one or two operands."""
    steps = Steps(call)
    if any(map(call.has, (8, 9))) or steps.gives(3):
        raise Unsupported("it has a buffer for its cache, or gives its scores")
    heads = call.integer("num_heads", 0)
    query, key, value = biased(steps, *attention_operands(steps, heads))
    key, value = (extended(steps, 6 + i, x, 1 + i) for i, x in enumerate((key, value)))
    past = call.shape(6)[2] if call.has(6) else 0
    rows, columns = query.type.shape[2], key.type.shape[2]
    added = [call.node(5)] if call.has(5) else []
    if call.has(4):
        added.insert(0, padding(steps, 4, query.type.shape[0], rows, columns))
    found = attended(steps, query, key, value, scores_of(call, query, added, past))
    return [steps.named(steps.rows_of_heads(found)), *(key, value)[: len(call.proto.output) - 1]]


def attention_operands(steps: Steps, heads: int) -> tuple[Node, Node, Node]:
    """Queries, keys and values as ``[batch, heads, steps, size]``."""
    call = steps.call
    query = call.node(0)
    if query.type.rank == 5:
        first, second, third = packed(steps, query)
        return first, second, third
    split = steps.heads(query, heads)
    if not call.has(1):
        raise Unsupported("it has no keys")
    key = call.node(1)
    if key.type.rank == 5:
        keys, values = packed(steps, key)
        return split, keys, values
    value = call.node(2)
    if key.type.rank == 4:
        return split, key, value
    return split, steps.heads(key, heads), steps.heads(value, heads)


def packed(steps: Steps, x: Node) -> list[Node]:
    """``[batch, steps, heads, n, size]`` as n of ``[batch, heads, steps, size]``."""
    batch, rows, heads, count, size = x.type.shape
    parts = steps.parts(x, 3, (1,) * count)
    return [steps.transpose(steps.reshape(p, batch, rows, heads, size), 0, 2, 1, 3) for p in parts]


def biased(steps: Steps, query: Node, key: Node, value: Node) -> tuple[Node, Node, Node]:
    """All three with their part of the bias; keys that come as heads have none."""
    call = steps.call
    if not call.has(3):
        return query, key, value
    sizes = [x.type.shape[1] * x.type.shape[3] for x in (query, key, value)]
    parts = steps.parts(call.node(3), 0, sizes)
    has_own = not call.has(1) or call.node(1).type.rank != 4
    made = []
    for i, (x, part) in enumerate(zip((query, key, value), parts, strict=True)):
        _, heads, _, size = x.type.shape
        by_head = steps.reshape(part, 1, heads, 1, size)
        made.append(steps.add(x, by_head) if i == 0 or has_own else x)
    return made[0], made[1], made[2]


def extended(steps: Steps, position: int, new: Node, output: int) -> Node:
    """The cache that is an operand, with new rows; these alone where it has none yet."""
    call = steps.call
    if not call.has(position) or (call.is_known(position) and 0 in call.shape(position)):
        return new
    joined = steps.joined(2, call.node(position), new)
    return steps.named(joined, output) if steps.gives(output) else joined


def padding(steps: Steps, position: int, batch: int, rows: int, columns: int) -> Node:
    """The term of the scores of padding: the operand has a length for each sample, ends and then
    starts of all, or conditions of columns or of rows and columns."""
    call = steps.call
    given = call.tensor(position)
    shape, column = given.type.shape, steps.counting((1, 1, 1, columns), 3)
    below = fn("lt", arg(0), fn("int64", arg(1)))
    if len(shape) == 1 and shape[0] == batch:
        seen = steps.condition(below, column, steps.reshape(given, batch, 1, 1, 1))
    elif len(shape) == 1 and shape[0] == 2 * batch:
        ends, starts = (
            steps.reshape(part, batch, 1, 1, 1) for part in steps.parts(given, 0, (batch, batch))
        )
        inside = fn("and", below, fn("ge", arg(0), fn("int64", arg(2))))
        seen = steps.condition(inside, column, ends, starts)
    elif len(shape) in (2, 3) and shape[-1] == columns:
        whole = steps.reshape(given, batch, 1, shape[1] if len(shape) == 3 else 1, columns)
        seen = steps.condition(fn("gt", fn("int64", arg(0)), lconst(0)), whole)
    else:
        raise Unsupported(f"its mask has shape {shape}")
    hidden = steps.number(call.number("mask_filter_value", HIDDEN))
    return steps.where(seen, steps.number(0.0), hidden)


def scores_of(call: Call, query: Node, added: list[Node], past: int) -> Scores:
    """How scores become shares."""
    scale = call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3])
    order = Causal(past) if call.integer("unidirectional", 0) else None
    return Scores(scale, added=tuple(added), causal=order)


@importer("com.microsoft.Attention")
def attention(call: Call) -> list[Node]:
    """Queries, keys and values by one product with weights."""
    if call.has(6) or call.integer("do_rotary", 0):
        raise Unsupported("it has a buffer for its cache, or rotates its operands")
    steps, columns = Steps(call), call.shape(1)[1]
    sizes = call.integers("qkv_hidden_sizes", ()) or (columns // 3,) * 3
    product = steps.product(call.node(0), 1)
    if call.has(2):
        product = steps.add(product, call.node(2))
    added = [call.node(5)] if call.has(5) else []
    return packed_attention(steps, steps.parts(product, 2, sizes), 3, 4, added)


@importer("com.microsoft.QAttention")
def q_attention(call: Call) -> list[Node]:
    """The same by one integer product: ``float(sum) * (x_scale * w_scale) + bias``."""
    if call.integer("past_present_share_buffer", 0) or call.integer("do_rotary", 0):
        raise Unsupported("it has a buffer for its cache, or rotates its operands")
    steps, weights = Steps(call), centred_weights(call, 1, 7)
    x, point = whole(call, 0), ZeroPoint.of(call, 6)
    sums = rows_times_weights(call, call.derived("sums"), x, point, weights)
    scales = steps.mul(steps.reshape(call.node(3), 1), call.node(4))
    real = steps.apply(fn("mul", fn("float", arg(0)), arg(1)), [sums, scales], DType.F32)
    product = steps.add(real, call.node(2))
    thirds = (weights.shape[1] // 3,) * 3
    return packed_attention(steps, steps.parts(product, 2, thirds), 5, 8, [])


def packed_attention(
    steps: Steps, rows: Sequence[Node], mask: int, past: int, added: list[Node]
) -> list[Node]:
    """Attention of queries, keys and values ``[batch, steps, heads * size]``, and the cache, whose
    keys and values are one tensor; ``mask`` and ``past`` are positions of operands."""
    call, heads = steps.call, steps.call.integer("num_heads", 0)
    batch = rows[0].type.shape[0]
    query, key, value = (steps.heads(part, heads) for part in rows)
    before, present = 0, []
    if call.has(past) and not (call.is_known(past) and 0 in call.shape(past)):
        before = call.shape(past)[3]
        parts = steps.parts(call.node(past), 0, (1, 1))
        olds = (steps.reshape(part, *call.shape(past)[1:]) for part in parts)
        key, value = (
            steps.joined(2, old, new) for old, new in zip(olds, (key, value), strict=True)
        )
    if steps.gives(1):
        shape = (1, *key.type.shape)
        both = [steps.reshape(x, *shape) for x in (key, value)]
        present = [steps.named(steps.joined(0, *both), 1)]
    if call.has(mask):
        added.insert(0, padding(steps, mask, batch, query.type.shape[2], key.type.shape[2]))
    found = attended(steps, query, key, value, scores_of(call, query, added, before))
    return [steps.named(steps.rows_of_heads(found)), *present]
