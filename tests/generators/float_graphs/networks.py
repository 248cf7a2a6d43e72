"""Hypothesis: small float networks."""

from __future__ import annotations

from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Node
from quantglow.ir.ops import Relu
from tests.generators.float_graphs.layers import FUSED_STEPS, STEPS, block, normalized
from tests.support.builder import Builder


@st.composite
def networks(
    draw: st.DrawFn,
    steps: tuple[str, ...] = tuple(STEPS),
    most: int = 8,
    first: tuple[str, ...] = (),
) -> Graph:
    """An NCHW network as the importer writes it; it ends in an image, a classifier or both."""
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


@st.composite
def fused_networks(draw: st.DrawFn, most: int = 8) -> Graph:
    """An NHWC network as the optimizer leaves it, with channels of any magnitude: layers with
    bounds and residuals, normalized blocks, and a classifier.
    """
    b = Builder(
        draw(st.integers(0, 2**16)), channels_last=True, spread=True, shared=draw(st.booleans())
    )
    x = b.conv(b.input(1, 4, 4, 4), 4, kernel=3)
    for step in draw(st.lists(st.sampled_from([*FUSED_STEPS]), max_size=most)):
        x = FUSED_STEPS[step](b, x, [])
    x = b.reshape(b.global_mean(x), 1, 4)
    if draw(st.booleans()):
        x = normalized(b, x, parameters=0.5)
        for _ in range(draw(st.integers(0, 3))):
            x = block(b, x)
    return b.graph(b.gemm(b.gemm(x, 6, low=0.0), 3))
