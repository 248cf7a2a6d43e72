"""Hypothesis: graphs of integer and float operators, NHWC, with every awkward way to move data."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from quantglow.errors import TypeRuleError
from quantglow.graph.graph import Graph
from quantglow.graph.node import Constant, Input, Node
from quantglow.types import DType, ElementType
from tests.generators.quantized_graphs.drawing import Growth
from tests.generators.quantized_graphs.steps import (
    EXACT,
    INEXACT,
    KEEPS_FLOATS_EXACT,
    Step,
    integer,
)

LARGEST = 600
"""Maximum number of elements of a value that further steps read."""


def attempted(step: Step, g: Growth, x: Node) -> Node | None:
    """The step's node, or None, also if a window does not fit the image."""
    try:
        return step(g, x)
    except TypeRuleError:
        return None


BATCHES = (1, 1, 2, 0)


def grown(draw: st.DrawFn, most: int, batches: tuple[int, ...]) -> Graph:
    """A graph whose outputs may be inputs, constants, one value twice (under one name or two), or
    parts of one another.
    """
    g = Growth(draw)
    shape = (g.pick(*batches), g.pick(1, 2, 4), g.pick(1, 3, 5), g.pick(1, 2, 3))
    g.input(shape, g.element())
    g.input(shape, g.pick(ElementType(DType.F32), g.element()))
    for _ in range(draw(st.integers(1, most))):
        step = draw(st.sampled_from(EXACT + INEXACT))
        x = draw(st.sampled_from([v for v in g.values if v.type.size <= LARGEST][-4:]))
        node = attempted(step, g, x)
        if node is not None:
            sources = [o for o in node.operands if not isinstance(o, Constant)]
            exact = integer(node) or (
                step in KEEPS_FLOATS_EXACT and all(o in g.exact or integer(o) for o in sources)
            )
            g.add(node, exact=exact)
    inputs = tuple(v for v in g.values if isinstance(v, Input))
    return Graph(inputs, drawn_outputs(g), "drawn")


def drawn_outputs(g: Growth) -> tuple[tuple[str, Node], ...]:
    """The last value, and up to four others."""
    values = g.draw(st.lists(st.sampled_from(g.values), min_size=1, max_size=4))
    if g.pick(False, False, True):
        values.append(g.floats(*g.pick(*(v.type.shape for v in g.values))))
    values.append(g.values[-1])
    outputs = [(f"out{i}", value) for i, value in enumerate(values)]
    return (*outputs, g.pick(*outputs)) if g.pick(False, False, False, True) else tuple(outputs)


@st.composite
def mixed_graphs(draw: st.DrawFn, most: int = 9, batches: tuple[int, ...] = BATCHES) -> Graph:
    """Graphs of up to ``most`` steps, whose inputs have one of these numbers of samples."""
    return grown(draw, most, batches)


def drawn_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random values for every input, the extremes of its type among them."""
    random = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        shape, dtype = node.type.shape, node.type.dtype
        if dtype.is_float:
            feeds[node.name] = random.uniform(-4, 4, shape).astype(np.float32)
        else:
            feeds[node.name] = random.integers(*dtype.limits, shape, endpoint=True).astype(
                dtype.numpy
            )
    return feeds
