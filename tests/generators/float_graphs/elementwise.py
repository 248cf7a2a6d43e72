"""Hypothesis: graphs of a few operators on values of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input, Node, operand_fields
from quantglow.ir.types import DType, TensorType, f32
from quantglow.support.arrays import Array

SHAPE = (2, 3)
"""Shape of the inputs."""
ROW_VALUES = (2, 1)
"""Shape of a value for each row, which broadcasts to ``SHAPE``."""


@dataclass(frozen=True)
class Form:
    """An operator with some of its fields; the others are operands to be drawn."""

    kind: type[Node]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def node(self, name: str, operands: Mapping[str, Any]) -> Node:
        drawn = {f: operands[f] for f in operand_fields(self.kind) if f not in self.attributes}
        return self.kind(name=name, **drawn, **self.attributes)


SCALAR = TensorType(DType.BOOL, ())
ELEMENTS = TensorType(DType.BOOL, SHAPE)
"""Types of conditions: a single one, or one for each element."""


@st.composite
def elementwise_graphs(
    draw: st.DrawFn,
    forms: Sequence[Form],
    *,
    most: int,
    inputs: int = 2,
    conditions: Sequence[TensorType] = (),
    constants: st.SearchStrategy[Array] | None = None,
    recent: int = 5,
    results: int = 0,
) -> Graph:
    """Graphs of up to ``most`` operators, which share operands.

    Operands are any value, one of the ``recent`` ones, and ``constants`` if they are given; the
    operand ``condition`` is one of the inputs ``c0``, ``c1``, … of the types ``conditions``; all
    other inputs are floats ``x0``, ``x1``, ….  Outputs are the last value, values of other shapes,
    which no operator reads, and up to ``results`` others.
    """
    chosen = tuple(Input(name=f"c{i}", tensor=kind) for i, kind in enumerate(conditions))
    reals = tuple(Input(name=f"x{i}", tensor=f32(*SHAPE)) for i in range(inputs))
    values, ends = list[Node](reals), list[Node]()
    for index in range(draw(st.integers(1, most))):
        others = values[-recent:]
        if constants is not None:
            others.append(Constant(name=f"k{index}", value=draw(constants)))
        pair = draw(st.sampled_from(values)), draw(st.sampled_from(others))
        x, y = draw(st.permutations(pair))
        operands: dict[str, Any] = {"x": x, "y": y, "parts": (x, x)}
        if chosen:
            operands["condition"] = draw(st.sampled_from(chosen))
        built = draw(st.sampled_from(forms)).node(f"n{index}", operands)
        (values if built.type.shape in (SHAPE, ROW_VALUES) else ends).append(built)
    drawn = draw(st.lists(st.sampled_from(values), max_size=results))
    outputs = tuple((f"y{i}", node) for i, node in enumerate([*ends, *drawn, values[-1]]))
    return Graph((*chosen, *reals), outputs, "drawn")
