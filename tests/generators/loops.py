"""Hypothesis: graphs with loops, nested ones among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import (
    Abs,
    Add,
    Concat,
    Loop,
    Mul,
    Pad,
    Reshape,
    Sigmoid,
    Slice,
    Softmax,
    Sub,
    Tanh,
    Transpose,
)
from quantglow.ir.types import f32
from tests.support.builder import Builder, cut

ROWS, COLUMNS = 2, 4
"""Every value of a body is of this shape."""

Step = Callable[[Builder, Node, Node], Node]


def swapped(b: Builder, x: Node, y: Node) -> Node:
    """The halves of the columns, one from each value."""
    parts = (cut(b, x, 2, 2), cut(b, y, 0, 2))
    return b.make(Concat, parts=parts, axis=1)


def joined(b: Builder, x: Node, y: Node) -> Node:
    """A computed half beside one that is copied."""
    parts = (b.make(Tanh, x=cut(b, x, 0, 2)), cut(b, y, 2, 2))
    return b.make(Concat, parts=parts, axis=1)


def padded(b: Builder, x: Node, y: Node) -> Node:
    """A computed half between numbers."""
    half = b.make(Abs, x=b.make(Sub, x=cut(b, x, 1, 2), y=cut(b, y, 2, 2)))
    return b.make(Pad, x=half, before=(0, 1), after=(0, 1), value=0.5)


def turned(b: Builder, x: Node, y: Node) -> Node:
    """The elements in another order."""
    return b.make(Reshape, x=b.make(Transpose, x=x, perm=(1, 0)), shape=(ROWS, COLUMNS))


STEPS: dict[str, Step] = {
    "add": lambda b, x, y: b.make(Tanh, x=b.make(Add, x=x, y=y)),
    "sub": lambda b, x, y: b.make(Abs, x=b.make(Sub, x=x, y=y)),
    "gate": lambda b, x, y: b.make(Mul, x=b.make(Sigmoid, x=x), y=y),
    "gemm": lambda b, x, y: b.make(Tanh, x=b.gemm(x, COLUMNS)),
    "softmax": lambda b, x, y: b.make(Softmax, x=x),
    "swapped": swapped,
    "joined": joined,
    "padded": padded,
    "turned": turned,
    "same": lambda b, x, y: y,
}


def value(b: Builder) -> Input:
    """An input of a body."""
    return Input(name=b.name("inner"), tensor=f32(ROWS, COLUMNS))


def loops(
    draw: st.DrawFn, b: Builder, known: Sequence[Node], trips: int, depth: int = 0
) -> list[Node]:
    """The results of a loop on known values [ROWS, COLUMNS]."""
    pick = st.sampled_from(known)
    carried = tuple(draw(st.lists(pick, min_size=1, max_size=3)))
    captured = tuple(draw(st.lists(pick, max_size=2, unique=True)))
    rows = [b.drawn(trips, ROWS, COLUMNS) if depth else b.input(trips, ROWS, COLUMNS)]
    back = Slice(
        name=b.name(),
        x=rows[0],
        starts=(trips - 1, 0, 0),
        sizes=rows[0].type.shape,
        steps=(-1, 1, 1),
    )
    sliced = draw(st.sampled_from([(), tuple(rows), (back,), (*rows, back)]))
    inputs = tuple(value(b) for _ in (*carried, *sliced, *captured))
    values: list[Node] = [*inputs]
    for name in draw(st.lists(st.sampled_from([*STEPS]), max_size=4)):
        values.append(STEPS[name](b, draw(st.sampled_from(values)), draw(st.sampled_from(values))))
    if depth == 0 and draw(st.booleans()):
        inside = values[-3:]
        built = loops(draw, b, inside, 2, depth + 1)
        values += [x for x in built if x.type == f32(ROWS, COLUMNS)]
        values += [cut(b, x, 0, 1, axis=0) for x in built if x.type.rank == 3]
        values = [x if x.type.rank == 2 else b.reshape(x, ROWS, COLUMNS) for x in values]
    ends = [draw(st.sampled_from(values)) for _ in range(len(carried) + draw(st.integers(0, 2)))]
    body = Graph(inputs, tuple((node.name, node) for node in ends))
    expected = draw(st.lists(st.integers(0, len(ends) - 1), min_size=1, unique=True))
    return [
        Loop(
            name=b.name("loop"),
            carried=carried,
            sliced=sliced,
            captured=captured,
            body=body,
            trips=trips,
            output=number,
        )
        for number in expected
    ]


@st.composite
def loop_graphs(draw: st.DrawFn) -> Graph:
    """A loop between layers; its stacked results may be parts of a larger value."""
    b = Builder(draw(st.integers(0, 2**16)))
    x, y = b.input(ROWS, COLUMNS), b.input(ROWS, COLUMNS)
    known: list[Node] = [x, b.make(Tanh, x=y), b.gemm(y, COLUMNS)]
    built = loops(draw, b, known, draw(st.integers(1, 5)))
    stacked = [node for node in built if node.type.rank == 3]
    if stacked and draw(st.booleans()):
        parts = (stacked[0], b.make(Abs, x=stacked[-1]))
        built.append(b.make(Concat, parts=parts, axis=draw(st.integers(0, 2))))
    built += [b.make(Tanh, x=node) for node in built[:1]]
    return b.graph(*built)
