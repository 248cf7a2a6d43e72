"""Importers of onnxruntime's attention: MultiHeadAttention, GroupQueryAttention, rotary positions.

GroupQueryAttention has a cache in which each sample has its own length.  A sample of length n has
the rows of its new tokens at the end of its n rows, in a cache that is as long as the longest
sample, or longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantglow.importer.onnx.domains import MICROSOFT
from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.nn.attention import (
    Causal,
    Scores,
    attend,
    look_up,
    turn,
)
from quantglow.importer.onnx.operators.nn.fused import FusedNodes
from quantglow.importer.onnx.operators.quantization.integer_products import (
    ZeroPoint,
    center_weights,
    rows_times_weights,
    whole,
)
from quantglow.importer.onnx.operators.tensor.slicing import write
from quantglow.ir.graph.node import Node
from quantglow.ir.ops.expression import arg, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.symbolic.size import Dim, decide, decide_in, integer
from quantglow.ir.types import DType

HIDDEN = -10_000.0
"""Default term of the scores of padding in MultiHeadAttention."""

LATER = {
    12: "a quantized cache",
    13: "a quantized cache",
    14: "normalized queries",
    15: "normalized keys",
    16: "lengths of queries",
}
"""Operands of GroupQueryAttention, by position, that are not computed."""

DEFAULTS = {"causal": 1, "qk_output": 0, "sliding_window_cache": 0, "kv_cache_bit_width": 0}
"""Attributes of GroupQueryAttention that have one value only."""


@importer(f"{MICROSOFT}.RotaryEmbedding")
def rotary_embedding(call: Call) -> Node:
    """x ``[batch, heads, steps, size]`` or ``[batch, steps, heads * size]`` at positions
    ``[batch, steps]``, or from one position on."""
    steps = FusedNodes(call)
    if call.integer("is_packed_batching", 0):
        raise Unsupported("samples of a batch are packed")
    x, positions = call.node(0), call.tensor(1)
    is_flat = x.type.rank == 3
    rows = x.type.shape[1 if is_flat else 2]
    if positions.type.is_single:
        first = steps.reshape(positions, 1, 1)
        value = fn("iadd", arg(0), fn("int64", arg(1)))
        positions = steps.integers(value, steps.iota((1, rows), 1), first)
    cosine, sine = (look_up(steps, call.node(i), positions) for i in (2, 3))
    pairs = cosine.type.shape[-1]
    width = call.integer("rotary_embedding_dim", 0)
    heads = call.integer("num_heads", 0)
    if is_flat:
        hidden = x.type.shape[2]
        x = steps.heads(x, heads if width else hidden // (2 * pairs))
    output = turn(steps, x, cosine, sine, bool(call.integer("interleaved", 0)))
    return steps.rename(steps.rows_of_heads(output) if is_flat else output)


@importer(f"{MICROSOFT}.MultiHeadAttention")
def multi_head_attention(call: Call) -> list[Node]:
    """Queries, keys and values apart, or packed in one or two operands."""
    steps = FusedNodes(call)
    if any(map(call.has, (8, 9))) or steps.has_output(3):
        raise Unsupported("it has a buffer for its cache, or gives its scores")
    heads = call.integer("num_heads", 0)
    query, key, value = _bias(steps, *_attention_operands(steps, heads))
    key, value = (_extend(steps, 6 + i, x, 1 + i) for i, x in enumerate((key, value)))
    past = call.shape(6)[2] if call.has(6) else 0
    rows, columns = query.type.shape[2], key.type.shape[2]
    added = [call.node(5)] if call.has(5) else []
    if call.has(4):
        added.insert(0, _padding(steps, 4, query.type.shape[0], rows, columns))
    context = attend(steps, query, key, value, _parse_scores(call, query, added, past))
    return [steps.rename(steps.rows_of_heads(context)), *(key, value)[: len(call.proto.output) - 1]]


def _attention_operands(steps: FusedNodes, heads: int) -> tuple[Node, Node, Node]:
    """Queries, keys and values as ``[batch, heads, steps, size]``."""
    call = steps.call
    query = call.node(0)
    if query.type.rank == 5:
        first, second, third = _pack(steps, query)
        return first, second, third
    split = steps.heads(query, heads)
    if not call.has(1):
        raise Unsupported("it has no keys")
    key = call.node(1)
    if key.type.rank == 5:
        keys, values = _pack(steps, key)
        return split, keys, values
    value = call.node(2)
    if key.type.rank == 4:
        return split, key, value
    return split, steps.heads(key, heads), steps.heads(value, heads)


def _pack(steps: FusedNodes, x: Node) -> list[Node]:
    """``[batch, steps, heads, n, size]`` as n of ``[batch, heads, steps, size]``."""
    batch, rows, heads, count, size = x.type.shape
    parts = steps.parts(x, 3, (1,) * count)
    return [steps.transpose(steps.reshape(p, batch, rows, heads, size), 0, 2, 1, 3) for p in parts]


def _bias(steps: FusedNodes, query: Node, key: Node, value: Node) -> tuple[Node, Node, Node]:
    """All three with their part of the bias; keys that come as heads have none."""
    call = steps.call
    if not call.has(3):
        return query, key, value
    sizes = [x.type.shape[1] * x.type.shape[3] for x in (query, key, value)]
    parts = steps.parts(call.node(3), 0, sizes)
    is_biased = not call.has(1) or call.node(1).type.rank != 4
    sums = []
    for i, (x, part) in enumerate(zip((query, key, value), parts, strict=True)):
        _, heads, _, size = x.type.shape
        by_head = steps.reshape(part, 1, heads, 1, size)
        sums.append(steps.add(x, by_head) if i == 0 or is_biased else x)
    return sums[0], sums[1], sums[2]


def _extend(steps: FusedNodes, position: int, new: Node, output: int) -> Node:
    """The cache that is an operand, with new rows; these alone where it has none yet."""
    call = steps.call
    if not call.has(position) or (call.is_known(position) and decide_in(0, call.shape(position))):
        return new
    joined = steps.join(2, call.node(position), new)
    return steps.rename(joined, output) if steps.has_output(output) else joined


def _padding(steps: FusedNodes, position: int, batch: Dim, rows: Dim, columns: Dim) -> Node:
    """The term of the scores of padding: the operand has a length for each sample, ends and then
    starts of all, or conditions of columns or of rows and columns."""
    call = steps.call
    operand = call.tensor(position)
    shape, column = operand.type.shape, steps.iota((1, 1, 1, columns), 3)
    below = fn("lt", arg(0), fn("int64", arg(1)))
    if len(shape) == 1 and decide(shape[0] == batch):
        visible = steps.condition(below, column, steps.reshape(operand, batch, 1, 1, 1))
    elif len(shape) == 1 and decide(shape[0] == 2 * batch):
        ends, starts = (
            steps.reshape(part, batch, 1, 1, 1) for part in steps.parts(operand, 0, (batch, batch))
        )
        inside = fn("and", below, fn("ge", arg(0), fn("int64", arg(2))))
        visible = steps.condition(inside, column, ends, starts)
    elif len(shape) in (2, 3) and decide(shape[-1] == columns):
        whole = steps.reshape(operand, batch, 1, shape[1] if len(shape) == 3 else 1, columns)
        visible = steps.condition(fn("gt", fn("int64", arg(0)), lconst(0)), whole)
    else:
        raise Unsupported(f"its mask has shape {shape}")
    hidden = steps.number(call.number("mask_filter_value", HIDDEN))
    return steps.where(visible, steps.number(0.0), hidden)


def _parse_scores(call: Call, query: Node, added: list[Node], past: Dim) -> Scores:
    """Rules by which scores become shares."""
    scale = call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3])
    order = Causal(past) if call.integer("unidirectional", 0) else None
    return Scores(scale, added=tuple(added), causal=order)


@importer(f"{MICROSOFT}.Attention")
def attention(call: Call) -> list[Node]:
    """Queries, keys and values by one product with weights."""
    if call.has(6) or call.integer("do_rotary", 0):
        raise Unsupported("it has a buffer for its cache, or rotates its operands")
    steps, columns = FusedNodes(call), call.shape(1)[1]
    sizes = call.integers("qkv_hidden_sizes", ()) or (columns // 3,) * 3
    product = steps.product(call.node(0), 1)
    if call.has(2):
        product = steps.add(product, call.node(2))
    added = [call.node(5)] if call.has(5) else []
    return _packed_attention(steps, steps.parts(product, 2, sizes), 3, 4, added)


@importer(f"{MICROSOFT}.QAttention")
def q_attention(call: Call) -> list[Node]:
    """Attention of queries, keys and values by one integer product.

    They are ``float(sum) * (x_scale * w_scale) + bias``.
    """
    if call.integer("past_present_share_buffer", 0) or call.integer("do_rotary", 0):
        raise Unsupported("it has a buffer for its cache, or rotates its operands")
    steps, weights = FusedNodes(call), center_weights(call, 1, 7)
    x, point = whole(call, 0), ZeroPoint.of(call, 6)
    sums = rows_times_weights(call, call.derive("sums"), x, point, weights)
    scales = steps.mul(steps.reshape(call.node(3), 1), call.node(4))
    real = steps.apply(fn("mul", fn("float", arg(0)), arg(1)), [sums, scales], DType.F32)
    product = steps.add(real, call.node(2))
    thirds = (weights.shape[1] // 3,) * 3
    return _packed_attention(steps, steps.parts(product, 2, thirds), 5, 8, [])


def _packed_attention(
    steps: FusedNodes, rows: Sequence[Node], mask: int, past: int, added: list[Node]
) -> list[Node]:
    """Attention of queries, keys and values ``[batch, steps, heads * size]``, and the cache, whose
    keys and values are one tensor; ``mask`` and ``past`` are positions of operands."""
    call, heads = steps.call, steps.call.integer("num_heads", 0)
    batch = rows[0].type.shape[0]
    query, key, value = (steps.heads(part, heads) for part in rows)
    before: Dim = 0
    present = []
    if call.has(past) and not (call.is_known(past) and decide_in(0, call.shape(past))):
        before = call.shape(past)[3]
        parts = steps.parts(call.node(past), 0, (1, 1))
        olds = (steps.reshape(part, *call.shape(past)[1:]) for part in parts)
        key, value = (steps.join(2, old, new) for old, new in zip(olds, (key, value), strict=True))
    if steps.has_output(1):
        shape = (1, *key.type.shape)
        both = [steps.reshape(x, *shape) for x in (key, value)]
        present = [steps.rename(steps.join(0, *both), 1)]
    if call.has(mask):
        added.insert(0, _padding(steps, mask, batch, query.type.shape[2], key.type.shape[2]))
    context = attend(steps, query, key, value, _parse_scores(call, query, added, before))
    return [steps.rename(steps.rows_of_heads(context)), *present]


@dataclass(frozen=True)
class Lengths:
    """Rows of the cache: those that the model is fed with, those that it gives, and those of the
    longest sample.

    before   rows of each sample before the new ones, ``[batch, 1, 1, 1]``; a number where it is the
             same for all
    """

    fed: Dim
    output: Dim
    longest: Dim
    before: Node | Dim


@importer(f"{MICROSOFT}.GroupQueryAttention")
def grouped_query_attention(call: Call) -> list[Node]:
    """Output, and the cache with the new rows."""
    steps = FusedNodes(call)
    _check(call)
    query, key, value = _grouped_operands(steps)
    lengths = _parse_lengths(steps, query.type.shape[2])
    if call.integer("do_rotary", 0):
        query, key = _rotate(steps, query, key, lengths)
    present = [_cache(steps, 3 + i, x, lengths) for i, x in enumerate((key, value))]
    key, value = (steps.part(x, 2, 0, lengths.longest) for x in present)
    # The window contains the step itself.
    window = call.integer("local_window_size", -1) - 1
    scores = Scores(
        call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3]),
        call.number("softcap", 0.0),
        (call.node(10),) if call.has(10) else (),
        causal=Causal(lengths.before, window),
        sink=_sink(steps),
    )
    context = attend(steps, query, key, value, scores)
    return [steps.rename(steps.rows_of_heads(context)), *present[: len(call.proto.output) - 1]]


def _check(call: Call) -> None:
    """Raise ``Unsupported`` for kinds of the operator that are not computed."""
    for position, what in LATER.items():
        if call.has(position):
            raise Unsupported(f"it has {what}")
    for name, value in DEFAULTS.items():
        if call.integer(name, value) != value:
            raise Unsupported(f"{name} is {call.integer(name, value)}")
    if any(call.proto.output[3:]):
        raise Unsupported("it gives its scores")


def _grouped_operands(steps: FusedNodes) -> tuple[Node, Node, Node]:
    """Queries, keys and values as ``[batch, heads, steps, size]``; they may come as one."""
    call = steps.call
    heads, shared = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    query = call.node(0)
    if call.has(1):
        return (
            steps.heads(query, heads),
            steps.heads(call.node(1), shared),
            steps.heads(call.node(2), shared),
        )
    size = query.type.shape[2] // (heads + 2 * shared)
    first, second, third = steps.parts(query, 2, (heads * size, shared * size, shared * size))
    return steps.heads(first, heads), steps.heads(second, shared), steps.heads(third, shared)


def _parse_lengths(steps: FusedNodes, rows: Dim) -> Lengths:
    """The rows of the cache.  Raises ``Unsupported`` where the longest sample is not known."""
    call = steps.call
    total = integer(call.array(6, "total_sequence_length").reshape(()).item())
    fed = call.shape(3)[2] if call.has(3) else 0
    whole = total if decide(total > fed) else fed
    if decide(total == rows):
        return Lengths(fed, whole, total, 0)
    lasts = call.tensor(5)
    value = fn("isub", fn("int64", arg(0)), lconst(rows - 1))
    before = steps.integers(value, steps.reshape(lasts, lasts.type.size, 1, 1, 1))
    return Lengths(fed, whole, total, before)


def _rotate(steps: FusedNodes, query: Node, key: Node, lengths: Lengths) -> tuple[Node, Node]:
    """Queries and keys at their positions: an operand, or behind the rows before."""
    call = steps.call
    batch, _, rows, _ = query.type.shape
    if call.has(9):
        positions = call.tensor(9)
    else:
        positions = steps.iota((1, rows), 1)
        if isinstance(lengths.before, Node):
            before = steps.reshape(lengths.before, batch, 1)
            positions = steps.integers(fn("iadd", arg(0), arg(1)), positions, before)
    cosine, sine = (look_up(steps, call.node(i), positions) for i in (7, 8))
    interleaved = bool(call.integer("rotary_interleaved", 0))
    first, second = (turn(steps, x, cosine, sine, interleaved) for x in (query, key))
    return first, second


def _cache(steps: FusedNodes, position: int, new: Node, lengths: Lengths) -> Node:
    """The cache with new rows, each sample's behind its own."""
    call, output = steps.call, position - 2
    batch, heads, rows, size = new.type.shape
    if not isinstance(lengths.before, Node) and decide(lengths.output == rows):
        return new
    added = lengths.output - lengths.fed
    room = [steps.zeros((batch, heads, added, size))] if decide(added > 0) else []
    if decide(lengths.fed > 0):
        room.insert(0, call.node(position))
    place = room[0] if len(room) == 1 else steps.join(2, *room)
    start = steps.reshape(lengths.before, batch) if isinstance(lengths.before, Node) else None
    cache = write(call, place, new, 2, start)
    return steps.rename(cache, output) if steps.has_output(output) else cache


def _sink(steps: FusedNodes) -> Node | None:
    """The score of a column whose share goes nowhere: of each head, or 0."""
    call = steps.call
    if call.has(11):
        return steps.reshape(call.node(11), 1, call.shape(11)[0], 1, 1)
    return steps.number(0.0) if call.integer("smooth_softmax", 0) > 0 else None
