"""Importers of Attention and RotaryEmbedding of the standard, and what all attention shares.

Heads that share their keys are computed as rows of one product, so nothing is repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantglow.frontend.context import Call, Unsupported, importer
from quantglow.frontend.operators.steps import Steps
from quantglow.graph.node import Node
from quantglow.ops.expression import arg, const, lconst
from quantglow.ops.expression import call as fn
from quantglow.ops.indexing import Gather

BOTH = fn("and", arg(0), arg(1))
LOWEST = -3.4028234663852886e38
"""The lowest float32: the score of what is not seen."""


@dataclass(frozen=True)
class Scores:
    """How scores of ``[batch, heads, rows, columns]`` become shares.

    scale   factor of the products
    cap     scores are bent to stay within it; 0 is none
    added   terms that broadcast, such as a mask of floats
    seen    condition: others than these have the lowest score
    strict  rows of which nothing is seen give 0, and not the mean of all
    sink    score of a column whose share goes nowhere: ``[1 or heads]``
    """

    scale: float
    cap: float = 0.0
    added: tuple[Node, ...] = ()
    seen: Node | None = None
    strict: bool = False
    sink: Node | None = None


def attended(steps: Steps, query: Node, key: Node, value: Node, scores: Scores) -> Node:
    """``softmax(query @ key') @ value`` of ``[batch, heads, steps, size]``; there may be more heads
    of queries than of keys."""
    batch, heads, rows, size = query.type.shape
    shared, columns = key.type.shape[1], key.type.shape[2]
    if heads % shared:
        raise Unsupported(f"{heads} heads of queries do not share {shared} of keys")
    grouped = steps.reshape(
        steps.scaled(query, scores.scale), batch, shared, -(-heads // shared) * rows, size
    )
    product = steps.matmul(grouped, steps.transpose(key, 0, 1, 3, 2))
    shares = shares_of(steps, steps.reshape(product, batch, heads, rows, columns), scores)
    grouped = steps.reshape(shares, batch, shared, heads // shared * rows, columns)
    mixed = steps.matmul(grouped, value)
    return steps.reshape(mixed, batch, heads, rows, value.type.shape[3])


def shares_of(steps: Steps, x: Node, scores: Scores) -> Node:
    """The softmax of what scores become."""
    if scores.cap:
        x = steps.capped(x, scores.cap)
    for term in scores.added:
        x = steps.add(x, term)
    if scores.seen is not None:
        x = steps.where(scores.seen, x, steps.number(LOWEST))
    if scores.sink is None:
        found = steps.softmax(x)
    else:
        batch, heads, rows, columns = x.type.shape
        wide = steps.add(steps.zeros((batch, heads, rows, 1)), scores.sink)
        found = steps.part(steps.softmax(steps.joined(3, x, wide)), 3, 0, columns)
    if scores.strict and scores.seen is not None:
        return steps.where(scores.seen, found, steps.number(0.0))
    return found


def causal(steps: Steps, rows: int, columns: int, before: Node | int, window: int = -1) -> Node:
    """Whether each of ``rows`` steps sees each of ``columns``: none after it, at most ``window``
    before.  ``before``: columns before the first step, the same for all or ``[batch, 1, 1, 1]``.
    """
    own, column = steps.counting((1, 1, rows, 1), 2), steps.counting((1, 1, 1, columns), 3)
    args = [column, own]
    last = arg(1)
    if isinstance(before, Node):
        args.append(before)
        last = fn("iadd", last, arg(2))
    else:
        last = fn("iadd", last, lconst(before))
    seen = fn("le", arg(0), last)
    if window >= 0:
        seen = fn("and", seen, fn("ge", arg(0), fn("isub", last, lconst(window))))
    return steps.condition(seen, *args)


def turned(steps: Steps, x: Node, cosine: Node, sine: Node, interleaved: bool) -> Node:
    """Pairs of elements of ``[batch, heads, steps, size]`` rotated; cosines and sines of the angles
    are ``[batch or 1, steps, pairs]``.  Elements behind the pairs stay.

    A pair is elements i and i + pairs, or neighbours where ``interleaved``.
    """
    batch, heads, rows, size = x.type.shape
    many, _, pairs = cosine.type.shape
    if 2 * pairs > size:
        raise Unsupported(f"{pairs} pairs are more than {size} elements")
    cosine, sine = (steps.reshape(a, many, 1, rows, pairs) for a in (cosine, sine))
    front, rest = (
        steps.parts(x, 3, (2 * pairs, size - 2 * pairs)) if 2 * pairs < size else (x, None)
    )
    if interleaved:
        apart = steps.reshape(front, batch, heads, rows, pairs, 2)
        low, high = (
            steps.reshape(p, batch, heads, rows, pairs) for p in steps.parts(apart, 4, (1, 1))
        )
    else:
        low, high = steps.parts(front, 3, (pairs, pairs))
    first = steps.sub(steps.mul(low, cosine), steps.mul(high, sine))
    second = steps.add(steps.mul(high, cosine), steps.mul(low, sine))
    if interleaved:
        first, second = (steps.reshape(p, batch, heads, rows, pairs, 1) for p in (first, second))
        found = steps.reshape(steps.joined(4, first, second), batch, heads, rows, 2 * pairs)
        return found if rest is None else steps.joined(3, found, rest)
    return steps.joined(3, first, second, *(() if rest is None else (rest,)))


def looked_up(steps: Steps, table: Node, positions: Node) -> Node:
    """Rows of a table of cosines or sines at positions ``[batch, steps]``."""
    return Gather(name=steps.call.derived("angles"), x=table, indices=positions, axis=0)


@importer("RotaryEmbedding")
def rotary_embedding(call: Call) -> Node:
    """x ``[batch, heads, steps, size]`` or ``[batch, steps, heads * size]``."""
    steps = Steps(call)
    x, cosine, sine = call.node(0), call.node(1), call.node(2)
    if call.has(3):
        positions = call.tensor(3)
        cosine, sine = looked_up(steps, cosine, positions), looked_up(steps, sine, positions)
    is_flat = x.type.rank == 3
    pairs = call.integer("rotary_embedding_dim", 0) // 2
    if pairs and pairs != cosine.type.shape[-1]:
        cosine, sine = (steps.part(a, 2, 0, pairs) for a in (cosine, sine))
    heads = steps.heads(x, call.integer("num_heads", 0)) if is_flat else x
    found = turned(steps, heads, cosine, sine, bool(call.integer("interleaved", 0)))
    return steps.named(steps.rows_of_heads(found) if is_flat else found)


@importer("Attention")
def attention(call: Call) -> list[Node]:
    """Attention of opset 23 and later; ``Unsupported`` leaves the rest to its definition."""
    steps = Steps(call)
    if call.has(6) or any(call.proto.output[3:]) or not call.is_float(0):
        raise Unsupported("it has lengths of samples, or gives its scores")
    if any(call.integer(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise Unsupported("it has a window")
    query, key, value = call.node(0), call.node(1), call.node(2)
    is_flat = query.type.rank == 3
    if is_flat:
        query = steps.heads(query, call.integer("q_num_heads", 0))
        key, value = (steps.heads(x, call.integer("kv_num_heads", 0)) for x in (key, value))
    past = call.shape(4)[2] if call.has(4) else 0
    key, value = extended(steps, 4, key), extended(steps, 5, value)
    rows, columns = query.type.shape[2], key.type.shape[2]
    scale = call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3])
    added, seen = mask(steps, columns)
    is_masked = seen is not None
    if call.integer("is_causal", 0):
        earlier = causal(steps, rows, columns, past)
        seen = earlier if seen is None else steps.condition(BOTH, seen, earlier)
    scores = Scores(scale, call.number("softcap", 0.0), added, seen, is_masked)
    found = attended(steps, query, key, value, scores)
    present = (key, value)[: max(len(call.proto.output) - 1, 0)]
    return [steps.named(steps.rows_of_heads(found) if is_flat else found), *present]


def mask(steps: Steps, columns: int) -> tuple[tuple[Node, ...], Node | None]:
    """The terms that the mask adds to scores, and the condition that it sets."""
    call = steps.call
    if not call.has(3):
        return (), None
    if call.shape(3)[-1] not in (1, columns):
        raise Unsupported("the mask is shorter than the keys")
    given = call.tensor(3)
    if not call.is_float(3):
        return (), given
    return (given,), steps.condition(fn("ge", arg(0), const(LOWEST)), given)


def extended(steps: Steps, position: int, new: Node) -> Node:
    """The cache that is an operand, with new rows; these alone where it has none yet."""
    call = steps.call
    if not call.has(position) or (call.is_known(position) and 0 in call.shape(position)):
        return new
    return steps.named(steps.joined(2, call.node(position), new), position - 3)
