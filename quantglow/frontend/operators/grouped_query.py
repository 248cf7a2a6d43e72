"""Importer of GroupQueryAttention: attention with a cache in which each sample has its own length.

A sample of length n has the rows of its new tokens at the end of its n rows, in a cache that is as
long as the longest sample, or longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantglow.frontend.nodes.context import Call, Unsupported, importer
from quantglow.frontend.operators.attention import Causal, Scores, attended, looked_up, turned
from quantglow.frontend.operators.scattering import written
from quantglow.frontend.operators.steps import Steps
from quantglow.graph.node import Node
from quantglow.ops.expression import arg, lconst
from quantglow.ops.expression import call as fn
from quantglow.symbolic.shapes import integer

LATER = {
    12: "a quantized cache",
    13: "a quantized cache",
    14: "normalized queries",
    15: "normalized keys",
    16: "lengths of queries",
}
"""Operands that are not computed."""

DEFAULTS = {"causal": 1, "qk_output": 0, "sliding_window_cache": 0, "kv_cache_bit_width": 0}
"""Attributes that have one value only."""


@dataclass(frozen=True)
class Lengths:
    """Rows of the cache: those that the model is fed with, those that it gives, and those of the
    longest sample.

    before   rows of each sample before the new ones, ``[batch, 1, 1, 1]``; a number where it is the
             same for all
    """

    fed: int
    whole: int
    longest: int
    before: Node | int


@importer("com.microsoft.GroupQueryAttention")
def grouped_query_attention(call: Call) -> list[Node]:
    """Output, and the cache with the new rows."""
    steps = Steps(call)
    check(call)
    query, key, value = grouped_operands(steps)
    lengths = lengths_of(steps, query.type.shape[2])
    if call.integer("do_rotary", 0):
        query, key = rotated(steps, query, key, lengths)
    present = [cached(steps, 3 + i, x, lengths) for i, x in enumerate((key, value))]
    key, value = (steps.part(x, 2, 0, lengths.longest) for x in present)
    # The window contains the step itself.
    window = call.integer("local_window_size", -1) - 1
    scores = Scores(
        call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3]),
        call.number("softcap", 0.0),
        (call.node(10),) if call.has(10) else (),
        causal=Causal(lengths.before, window),
        sink=sink(steps),
    )
    found = attended(steps, query, key, value, scores)
    return [steps.named(steps.rows_of_heads(found)), *present[: len(call.proto.output) - 1]]


def check(call: Call) -> None:
    """Raise ``Unsupported`` for kinds of the operator that are not computed."""
    for position, what in LATER.items():
        if call.has(position):
            raise Unsupported(f"it has {what}")
    for name, value in DEFAULTS.items():
        if call.integer(name, value) != value:
            raise Unsupported(f"{name} is {call.integer(name, value)}")
    if any(call.proto.output[3:]):
        raise Unsupported("it gives its scores")


def grouped_operands(steps: Steps) -> tuple[Node, Node, Node]:
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


def lengths_of(steps: Steps, rows: int) -> Lengths:
    """The rows of the cache.  Raises ``Unsupported`` where the longest sample is not known."""
    call = steps.call
    total = integer(call.array(6, "total_sequence_length").reshape(()).item())
    fed = call.shape(3)[2] if call.has(3) else 0
    whole = total if total > fed else fed
    if total == rows:
        return Lengths(fed, whole, total, 0)
    lasts = call.tensor(5)
    value = fn("isub", fn("int64", arg(0)), lconst(rows - 1))
    before = steps.integers(value, steps.reshape(lasts, lasts.type.size, 1, 1, 1))
    return Lengths(fed, whole, total, before)


def rotated(steps: Steps, query: Node, key: Node, lengths: Lengths) -> tuple[Node, Node]:
    """Queries and keys at their positions: an operand, or behind the rows before."""
    call = steps.call
    batch, _, rows, _ = query.type.shape
    if call.has(9):
        positions = call.tensor(9)
    else:
        positions = steps.counting((1, rows), 1)
        if isinstance(lengths.before, Node):
            before = steps.reshape(lengths.before, batch, 1)
            positions = steps.integers(fn("iadd", arg(0), arg(1)), positions, before)
    cosine, sine = (looked_up(steps, call.node(i), positions) for i in (7, 8))
    interleaved = bool(call.integer("rotary_interleaved", 0))
    first, second = (turned(steps, x, cosine, sine, interleaved) for x in (query, key))
    return first, second


def cached(steps: Steps, position: int, new: Node, lengths: Lengths) -> Node:
    """The cache with new rows, each sample's behind its own."""
    call, output = steps.call, position - 2
    batch, heads, rows, size = new.type.shape
    if isinstance(lengths.before, int) and lengths.whole == rows:
        return new
    added = lengths.whole - lengths.fed
    room = [steps.zeros((batch, heads, added, size))] if added > 0 else []
    if lengths.fed > 0:
        room.insert(0, call.node(position))
    place = room[0] if len(room) == 1 else steps.joined(2, *room)
    start = steps.reshape(lengths.before, batch) if isinstance(lengths.before, Node) else None
    found = written(call, place, new, 2, start)
    return steps.named(found, output) if steps.gives(output) else found


def sink(steps: Steps) -> Node | None:
    """The score of a column whose share goes nowhere: of each head, or 0."""
    call = steps.call
    if call.has(11):
        return steps.reshape(call.node(11), 1, call.shape(11)[0], 1, 1)
    return steps.number(0.0) if call.integer("smooth_softmax", 0) > 0 else None
