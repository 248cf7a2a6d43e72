"""Hypothesis: small float networks."""

from __future__ import annotations

from hypothesis import strategies as st

from quantglow.graph.graph import Graph
from quantglow.graph.node import Node
from quantglow.ops import Relu
from tests.generators.float_graphs.layers import STEPS
from tests.support.builder import Builder


@st.composite
def networks(
    draw: st.DrawFn,
    steps: tuple[str, ...] = tuple(STEPS),
    most: int = 8,
    first: tuple[str, ...] = (),
) -> Graph:
    """A small image network as the importer writes it; ends in an image, a classifier or both."""
    b = Builder(draw(st.integers(0, 2**16)))
    n, c = draw(st.sampled_from([(1, 3), (2, 4), (1, 1), (2, 1)]))
    x: Node = b.input(n, c, draw(st.integers(2, 5)), draw(st.integers(2, 5)))
    values = [x]
    for step in (*first, *draw(st.lists(st.sampled_from(steps), max_size=most))):
        x = STEPS[step](b, x, values)
        values.append(x)
    flat = b.reshape(x, n, x.type.size // n)
    head = b.make(Relu, x=b.gemm(flat, 3))
    return b.graph(*draw(st.sampled_from([(x,), (head,), (head, x)])))
