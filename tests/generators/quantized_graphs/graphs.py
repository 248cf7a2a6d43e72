"""Hypothesis: graphs of integer and float operators, NHWC, with every awkward way to move data."""

from __future__ import annotations

from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.types import DType, ElementType
from quantglow.support.errors import TypeRuleError
from tests.generators.quantized_graphs.drawing import Drawing
from tests.generators.quantized_graphs.steps import (
    EXACT,
    INEXACT,
    KEEPS_FLOATS_EXACT,
    Step,
    integer,
)

LARGEST = 600
"""Maximum number of elements of a value that further steps read."""


TRIES = 4
"""Maximum number of steps that are tried for each one that fits."""


def grow(g: Drawing) -> None:
    """Add the value of a drawn step."""
    for _ in range(TRIES):
        step = g.pick_evenly(*EXACT, *INEXACT)
        x = g.pick(*[v for v in g.values if v.type.size <= LARGEST][-4:])
        node = attempted(step, g, x)
        if node is not None:
            g.add(node, exact=is_exact(g, step, node))
            return


def attempted(step: Step, g: Drawing, x: Node) -> Node | None:
    """The step's node, or None, also if a window does not fit the image."""
    try:
        return step(g, x)
    except TypeRuleError:
        return None


def is_exact(g: Drawing, step: Step, node: Node) -> bool:
    """Whether lowering must keep the value of a step's node bit for bit."""
    sources = [o for o in node.operands if not isinstance(o, Constant)]
    kept = step in KEEPS_FLOATS_EXACT and all(o in g.exact or integer(o) for o in sources)
    return integer(node) or kept


BATCHES = (1, 1, 2, 0)
"""Numbers of samples; a batch may be empty."""


@st.composite
def mixed_graphs(draw: st.DrawFn, most: int = 9, batches: tuple[int, ...] = BATCHES) -> Graph:
    """Graphs of up to ``most`` steps, whose inputs have one of these numbers of samples.

    Outputs may be inputs, constants, one value twice (under one name or two), or parts of one
    another.
    """
    g = Drawing(draw)
    shape = (g.pick(*batches), g.pick(1, 2, 4), g.pick(1, 3, 5), g.pick(1, 2, 3))
    for element in (g.element(), g.pick(ElementType(DType.F32), g.element())):
        g.add(g.input(shape, element), exact=True)
    for _ in range(draw(st.integers(1, most))):
        grow(g)
    return Graph(tuple(g.inputs), drawn_outputs(g), "drawn")


def drawn_outputs(g: Drawing) -> tuple[tuple[str, Node], ...]:
    """The last value, and up to four others."""
    values = g.draw(st.lists(st.sampled_from(g.values), min_size=1, max_size=4))
    if g.pick(False, False, True):
        values.append(g.floats(*g.pick(*(v.type.shape for v in g.values))))
    values.append(g.values[-1])
    outputs = [(f"out{i}", value) for i, value in enumerate(values)]
    return (*outputs, g.pick(*outputs)) if g.pick(False, False, False, True) else tuple(outputs)
