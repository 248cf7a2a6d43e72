"""Importers of Attention and RotaryEmbedding of the standard, and what all attention shares.

Heads that share their keys are computed as rows of one product, so nothing is repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from quantglow.importer.onnx.nodes.context import Call, Unsupported, importer
from quantglow.importer.onnx.operators.nn.fused import FusedNodes
from quantglow.importer.onnx.operators.tensor.indexing import from_the_begin
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops.expression import arg, const, lconst
from quantglow.ir.ops.expression import call as fn
from quantglow.ir.ops.indexing import Gather
from quantglow.ir.ops.loop import Loop
from quantglow.ir.symbolic.size import Dim, Shape, decide, decide_in, is_free, surely_equal

BOTH = fn("and", arg(0), arg(1))
LOWEST = -3.4028234663852886e38
"""The lowest float32: the score of what is not seen."""


MOST_SCORES = 2**22
"""Maximum number of scores that are in memory at once: more are computed in blocks of rows."""

BLOCK_ROWS = 128
"""Rows of queries in a block."""


@dataclass(frozen=True)
class Causal:
    """Steps see no columns after their own, and at most ``window`` before.

    before   columns before the first step, the same for all or ``[batch, 1, 1, 1]``
    """

    before: Node | Dim
    window: int = -1

    def visible(self, steps: FusedNodes, row: Node, columns: Dim) -> Node:
        """Whether the steps ``row`` of ``[1, 1, rows, 1]`` see each of so many columns."""
        column = steps.iota((1, 1, 1, columns), 3)
        before = arg(2) if isinstance(self.before, Node) else lconst(self.before)
        last = fn("iadd", arg(1), before)
        visible = fn("le", arg(0), last)
        if self.window >= 0:
            visible = fn("and", visible, fn("ge", arg(0), fn("isub", last, lconst(self.window))))
        args = (column, row, self.before) if isinstance(self.before, Node) else (column, row)
        return steps.condition(visible, *args)


@dataclass(frozen=True)
class Scores:
    """Rules by which scores of ``[batch, heads, rows, columns]`` become shares.

    scale    factor of the products
    cap      scores are bent to stay within it; 0 is none
    added    terms that broadcast, such as a mask of floats
    visible  condition: others than these have the lowest score; a row without any gives 0
    causal   the same by the order of steps
    sink     score of a column whose share goes nowhere: ``[1 or heads]``
    """

    scale: float
    cap: float = 0.0
    added: tuple[Node, ...] = ()
    visible: Node | None = None
    causal: Causal | None = None
    sink: Node | None = None


def attend(steps: FusedNodes, query: Node, key: Node, value: Node, scores: Scores) -> Node:
    """``softmax(query @ key') @ value`` of ``[batch, heads, steps, size]``; there may be more heads
    of queries than of keys."""
    batch, heads, rows, _ = query.type.shape
    shared, columns = key.type.shape[1], key.type.shape[2]
    if decide(heads % shared != 0):
        raise Unsupported(f"{heads} heads of queries do not share {shared} of keys")
    row = steps.iota((1, 1, rows, 1), 2)
    query = steps.scale(query, scores.scale)
    is_large = decide(batch * heads * rows * columns > MOST_SCORES)
    if is_large and decide(rows > BLOCK_ROWS):
        return _in_blocks(steps, query, key, value, row, scores)
    return _at_once(steps, query, key, value, row, scores)


def _at_once(
    steps: FusedNodes, query: Node, key: Node, value: Node, row: Node, scores: Scores
) -> Node:
    """Attention of scaled queries, which are the steps ``row``."""
    batch, heads, rows, size = query.type.shape
    shared, columns = key.type.shape[1], key.type.shape[2]
    copies = heads // shared
    # Heads that share keys lie side by side, so their rows join without moving anything.
    grouped = steps.reshape(query, batch, shared, copies * rows, size)
    product = steps.matmul(grouped, steps.transpose(key, 0, 1, 3, 2))
    whole = steps.reshape(product, batch, heads, rows, columns)
    shares = _attention_shares(steps, whole, row, scores)
    mixed = steps.matmul(steps.reshape(shares, batch, shared, copies * rows, columns), value)
    return steps.reshape(mixed, batch, heads, rows, value.type.shape[3])


def _in_blocks(
    steps: FusedNodes, query: Node, key: Node, value: Node, row: Node, scores: Scores
) -> Node:
    """Attention in a loop over blocks of rows: only the scores of one block are in memory."""
    batch, heads, rows, _ = query.type.shape
    # A free number of rows is filled up by two at least: sizes of 0 and 1 would be cases apart.
    trips = (rows + 1) // BLOCK_ROWS + 1 if is_free(rows) else -(-rows // BLOCK_ROWS)
    loop = LoopSteps(steps, trips)

    def bind_operand(x: Node) -> Node:
        """An operand in a trip: its block where it has rows, else all of it."""
        shape = (1,) * (4 - x.type.rank) + x.type.shape
        x = steps.reshape(x, *shape)
        return loop.block(x) if surely_equal(shape[2:3], (rows,)) else loop.capture(x)

    inner = replace(
        scores,
        added=tuple(map(bind_operand, scores.added)),
        visible=None if scores.visible is None else bind_operand(scores.visible),
        sink=None if scores.sink is None else bind_operand(scores.sink),
        causal=loop.capture_causal(scores.causal),
    )
    queries, numbers = loop.block(query), loop.block(row)
    keys, values = loop.capture(key), loop.capture(value)
    mixed = loop.stack(_at_once(steps, queries, keys, values, numbers, inner))
    joined = steps.transpose(mixed, 1, 2, 0, 3, 4)
    padded = steps.reshape(joined, batch, heads, trips * BLOCK_ROWS, value.type.shape[3])
    return steps.part(padded, 2, 0, rows)


@dataclass(frozen=True)
class LoopSteps:
    """The operands of a loop over blocks of rows, and their values in a trip."""

    steps: FusedNodes
    trips: Dim
    slices: list[tuple[Node, Input]] = field(default_factory=list)
    captures: list[tuple[Node, Input]] = field(default_factory=list)

    def block(self, x: Node) -> Node:
        """A block of the rows of x ``[batch, heads, rows, columns]``; the last one is filled up."""
        batch, heads, rows, columns = x.type.shape
        whole = self.trips * BLOCK_ROWS
        if not surely_equal((rows,), (whole,)):
            filling = self.steps.fill(x, (batch, heads, whole - rows, columns))
            x = self.steps.join(2, x, filling)
        apart = self.steps.reshape(x, batch, heads, self.trips, BLOCK_ROWS, columns)
        moved = self.steps.transpose(apart, 2, 0, 1, 3, 4)
        return self._bind(self.slices, moved, moved.type.shape[1:])

    def capture(self, x: Node) -> Node:
        """All of x, in each trip."""
        return self._bind(self.captures, x, x.type.shape)

    def capture_causal(self, causal: Causal | None) -> Causal | None:
        if causal is None or not isinstance(causal.before, Node):
            return causal
        return replace(causal, before=self.capture(causal.before))

    def _bind(self, bindings: list[tuple[Node, Input]], x: Node, shape: Shape) -> Node:
        trip_input = Input(name=self.steps.call.derive("trip"), tensor=x.type.with_shape(shape))
        bindings.append((x, trip_input))
        return trip_input

    def stack(self, result: Node) -> Node:
        """The results of all trips, along a new first axis."""
        operands = [*self.slices, *self.captures]
        return Loop(
            name=self.steps.call.derive("blocks"),
            carried=(),
            sliced=tuple(x for x, _ in self.slices),
            captured=tuple(x for x, _ in self.captures),
            body=Graph(tuple(trip_input for _, trip_input in operands), ((result.name, result),)),
            trips=self.trips,
        )


def _attention_shares(steps: FusedNodes, x: Node, row: Node, scores: Scores) -> Node:
    """The softmax of what the scores of the steps ``row`` become."""
    if scores.cap:
        x = steps.cap(x, scores.cap)
    for term in scores.added:
        x = steps.add(x, term)
    visible = scores.visible
    if scores.causal is not None:
        earlier = scores.causal.visible(steps, row, x.type.shape[3])
        visible = earlier if visible is None else steps.condition(BOTH, visible, earlier)
    if visible is not None:
        x = steps.where(visible, x, steps.number(LOWEST))
    if scores.sink is None:
        shares = steps.softmax(x)
    else:
        batch, heads, rows, columns = x.type.shape
        wide = steps.add(steps.zeros((batch, heads, rows, 1)), scores.sink)
        shares = steps.part(steps.softmax(steps.join(3, x, wide)), 3, 0, columns)
    if scores.visible is not None and visible is not None:
        return steps.where(visible, shares, steps.number(0.0))
    return shares


def turn(steps: FusedNodes, x: Node, cosine: Node, sine: Node, interleaved: bool) -> Node:
    """Pairs of elements of ``[batch, heads, steps, size]`` rotated; cosines and sines of the angles
    are ``[batch or 1, steps, pairs]``.  Elements behind the pairs stay.

    A pair is elements i and i + pairs, or neighbors where ``interleaved``.
    """
    batch, heads, rows, size = x.type.shape
    many, _, pairs = cosine.type.shape
    if decide(2 * pairs > size):
        raise Unsupported(f"{pairs} pairs are more than {size} elements")
    cosine, sine = (steps.reshape(a, many, 1, rows, pairs) for a in (cosine, sine))
    has_tail = decide(2 * pairs < size)
    sizes = (2 * pairs, size - 2 * pairs)
    front, tail = steps.parts(x, 3, sizes) if has_tail else (x, None)
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
        rotated = steps.reshape(steps.join(4, first, second), batch, heads, rows, 2 * pairs)
        return rotated if tail is None else steps.join(3, rotated, tail)
    return steps.join(3, first, second, *(() if tail is None else (tail,)))


def look_up(steps: FusedNodes, table: Node, positions: Node) -> Node:
    """Rows of a table of cosines or sines at positions ``[batch, steps]``, from 0 on."""
    checked = from_the_begin(steps.call, positions, table.type.shape[0])
    return Gather(name=steps.call.derive("angles"), x=table, indices=checked, axis=0)


@importer("RotaryEmbedding")
def rotary_embedding(call: Call) -> Node:
    """x ``[batch, heads, steps, size]`` or ``[batch, steps, heads * size]``."""
    steps = FusedNodes(call)
    x, cosine, sine = call.node(0), call.node(1), call.node(2)
    if call.has(3):
        positions = call.tensor(3)
        cosine, sine = look_up(steps, cosine, positions), look_up(steps, sine, positions)
    is_flat = x.type.rank == 3
    pairs = call.integer("rotary_embedding_dim", 0) // 2
    if pairs and decide(pairs != cosine.type.shape[-1]):
        cosine, sine = (steps.part(a, 2, 0, pairs) for a in (cosine, sine))
    heads = steps.heads(x, call.integer("num_heads", 0)) if is_flat else x
    rotated = turn(steps, heads, cosine, sine, bool(call.integer("interleaved", 0)))
    return steps.rename(steps.rows_of_heads(rotated) if is_flat else rotated)


@importer("Attention")
def attention(call: Call) -> list[Node]:
    """Attention of opset 23 and later; ``Unsupported`` leaves the rest to its definition."""
    steps = FusedNodes(call)
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
    key, value = extend(steps, 4, key), extend(steps, 5, value)
    scale = call.number("scale", 0.0) or 1 / math.sqrt(query.type.shape[3])
    added, visible = mask(steps, key.type.shape[2])
    order = Causal(past) if call.integer("is_causal", 0) else None
    scores = Scores(scale, call.number("softcap", 0.0), added, visible, order)
    context = attend(steps, query, key, value, scores)
    present = (key, value)[: max(len(call.proto.output) - 1, 0)]
    return [steps.rename(steps.rows_of_heads(context) if is_flat else context), *present]


def mask(steps: FusedNodes, columns: Dim) -> tuple[tuple[Node, ...], Node | None]:
    """The terms that the mask adds to scores, and the condition that it sets."""
    call = steps.call
    if not call.has(3):
        return (), None
    if not decide_in(call.shape(3)[-1], (1, columns)):
        raise Unsupported("the mask is shorter than the keys")
    operand = call.tensor(3)
    if not call.is_float(3):
        return (), operand
    return (operand,), steps.condition(fn("ge", arg(0), const(LOWEST)), operand)


def extend(steps: FusedNodes, position: int, new: Node) -> Node:
    """The cache that is an operand, with new rows; these alone where it has none yet."""
    call = steps.call
    if not call.has(position) or (call.is_known(position) and decide_in(0, call.shape(position))):
        return new
    return steps.rename(steps.join(2, call.node(position), new), position - 3)
