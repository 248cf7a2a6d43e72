"""Element-wise primitives read values that are moved apart or repeated where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Add, Expand, Mul, Reshape, Resize, Transpose
from quantglow.ir.program.program import Compute, Copy
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, f32
from quantglow.memory.planner import plan_memory
from quantglow.transforms.lowering import lower
from quantglow.transforms.lowering.views import group
from quantglow.transforms.program.generate import generate

CODES = ElementType(DType.I8, QuantParams.per_tensor(0.05, -3))


def codes(name: str, *shape: int) -> Input:
    return Input(name=name, tensor=TensorType(DType.I8, shape, CODES.quant))


def enlarged(x: Node, fh: int = 2, fw: int = 3) -> Node:
    _, h, w, _ = x.type.shape
    return Resize(
        name="e",
        x=x,
        sizes=(h * fh, w * fw),
        scales=(float(fh), float(fw)),
        coordinates="asymmetric",
        rounding="floor",
    )


def apart(x: Node) -> Node:
    """[N, H, W, 4] to [N, 2H, 2W, 1]."""
    n, h, w, _ = x.type.shape
    split = Reshape(name="s", x=x, shape=(n, h, w, 2, 2))
    moved = Transpose(name="t", x=split, perm=(0, 1, 3, 2, 4))
    return Reshape(name="j", x=moved, shape=(n, 2 * h, 2 * w, 1))


def expanded(x: Node) -> Node:
    n, h, w, c = x.type.shape
    cells = Expand(name="w", x=Reshape(name="s", x=x, shape=(n, h, w, 1, c)), shape=(n, h, w, 2, c))
    return Reshape(name="j", x=cells, shape=(n, h, 2 * w, c))


CASES = {"enlarged": enlarged, "apart": apart, "expanded": expanded}


def graph_of(case: str, channels: int = 4) -> Graph:
    """``moved(x) * gate + y``: the gate is broadcast."""
    x = codes("x", 2, 3, 5, channels)
    moved = CASES[case](x)
    gate, y = codes("g", 2, 1, 1, moved.type.shape[3]), codes("y", *moved.type.shape)
    product = Mul(name="m", x=moved, y=gate, out=CODES)
    return Graph((x, gate, y), (("out", Add(name="r", x=product, y=y, out=CODES)),))


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_copied_before_it_is_read(case: str) -> None:
    graph = graph_of(case)
    program = generate(lower(graph))
    assert not any(isinstance(step, Copy) for step in program.instructions)
    names = [type(s.op).__name__ for s in program.instructions if isinstance(s, Compute)]
    assert "Resize" not in names
    feeds = {
        n.name: np.random.default_rng(0).integers(-128, 128, n.type.shape).astype(np.int8)
        for n in graph.inputs
    }
    executable = ReferenceExecutable(program, plan_memory(program)).run(feeds)
    np.testing.assert_array_equal(executable, interpret(graph, feeds))


def test_a_value_that_others_read_is_made_once() -> None:
    x = codes("x", 1, 3, 5, 4)
    large = enlarged(x)
    y = codes("y", *large.type.shape)
    outputs = [Add(name=f"r{i}", x=large, y=y, low=float(i), out=CODES) for i in range(2)]
    lowered = lower(Graph((x, y), tuple((n.name, n) for n in outputs)))
    assert sum(isinstance(n, Resize) for n in lowered.nodes) == 1


@pytest.mark.parametrize("sizes", [(6, 9), (6, 10)])
def test_other_neighbours_are_left_to_resize(sizes: tuple[int, int]) -> None:
    x = codes("x", 1, 3, 5, 4)
    scales = (sizes[0] / 3, sizes[1] / 5)
    how = {"coordinates": "asymmetric", "rounding": "ceil"}
    large = Resize(name="e", x=x, sizes=sizes, scales=scales, **how)
    y = codes("y", *large.type.shape)
    lowered = lower(Graph((x, y), (("r", Add(name="r", x=large, y=y, out=CODES)),)))
    assert any(isinstance(n, Resize) for n in lowered.nodes)


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=5))
def test_groups_multiply_to_their_axes(factors: list[list[int]]) -> None:
    shape = tuple(int(np.prod(group)) for group in factors)
    cells = tuple(size for group in factors for size in group)
    actual = group(shape, cells)
    assert actual is not None
    assert tuple(int(np.prod(group)) for group in actual) == shape
    assert tuple(size for group in actual for size in group) == cells


def test_an_axis_of_several_has_no_group() -> None:
    assert group((4, 6), (8, 3)) is None
    assert group((2, 3), (2, 3, 2)) is None


def test_two_views_do_not_chase_each_other() -> None:
    x, y = (Input(name=name, tensor=f32(1, 1, 4, 3)) for name in "xy")
    one = Transpose(name="a", x=x, perm=(0, 3, 1, 2))
    turned = Transpose(name="b", x=y, perm=(0, 1, 3, 2))
    other = Reshape(name="c", x=turned, shape=(1, 3, 1, 4))
    graph = Graph((x, y), (("out", Add(name="sum", x=one, y=other)),))
    feeds = {i.name: np.arange(12, dtype=np.float32).reshape(i.type.shape) for i in (x, y)}
    results = interpret(lower(graph), feeds)
    np.testing.assert_array_equal(results, interpret(graph, feeds))
