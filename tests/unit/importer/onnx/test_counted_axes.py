"""Grids of indices that read a whole value leave no Gather, for known and free sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.ir.ops import Gather
from tests.support.effort import moderate


def grid_model(free: bool, starts: Sequence[int] = (0, 0), cached: bool = False) -> onnx.ModelProto:
    """y [N, 1, 1, S] = x [N, S] at (i, j) for all i from ``starts[0]`` on and all j, as
    transformers read masks; ``cached``: for j below P + T, of ``past`` [N, P] and ``new`` [N, T].
    """
    node = helper.make_node
    ends = ("n", starts[0]), ("s", starts[1])
    constants = {"one": 1, "zero": 0, "places_n": [0], "places_s": [1], "last": [-1]}
    constants |= {f"start_{name}": start for name, start in ends}
    nodes = [node("Shape", ["x"], ["shape_n"])]
    if cached:
        nodes += [node("Shape", [name], [f"shape_{name}"]) for name in ("past", "new")]
        nodes += [node("Add", ["shape_past", "shape_new"], ["shape_s"])]
    else:
        nodes += [node("Identity", ["shape_n"], ["shape_s"])]
    for name, _ in ends:
        nodes += [
            node("Gather", [f"shape_{name}", f"places_{name}"], [f"size_{name}"]),
            node("Squeeze", [f"size_{name}"], [f"count_{name}"]),
            node("Range", [f"start_{name}", f"count_{name}", "one"], [f"range_{name}"]),
        ]
    constants |= {"axes_n": [1, 2, 3], "axes_s": [0, 1, 2]}
    nodes += [node("Unsqueeze", [f"range_{n}", f"axes_{n}"], [f"wide_{n}"]) for n in "ns"]
    nodes += [
        node("Max", ["wide_n", "wide_s"], ["both"]),
        node("Shape", ["both"], ["outer"]),
        *(node("Expand", [f"wide_{n}", "outer"], [f"grid_{n}"]) for n in "ns"),
        *(node("Unsqueeze", [f"grid_{n}", "last"], [f"column_{n}"]) for n in "ns"),
        node("Concat", ["column_n", "column_s"], ["indices"], axis=-1),
        node("GatherND", ["x", "indices"], ["y"]),
    ]
    dims = ["N", "S"] if free else [3, 5]
    ends_in = {"x": dims} | ({"past": ["N", "P"], "new": ["N", "T"]} if cached else {})
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, d) for k, d in ends_in.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", 1, 1, "b"])
    known = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "grid", inputs, [y], known)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_a_mask_of_keys_with_a_cache_is_read_whole() -> None:
    compiled = qg.compile(grid_model(free=True, cached=True), num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    for n, past, new, more in [(2, 3, 4, 0), (3, 5, 1, 0), (1, 6, 2, 0), (2, 3, 4, 2)]:
        shapes = {"x": (n, past + new + more), "past": (n, past), "new": (n, new)}
        feeds = {
            name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            for name, shape in shapes.items()
        }
        (actual,) = compiled.run(None, feeds)
        np.testing.assert_array_equal(actual, feeds["x"][:, None, None, : past + new])
    assert not any(isinstance(node, Gather) for node in compiled.graph.nodes)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(("starts", "whole"), [((0, 0), True), ((1, 0), False), ((0, 1), False)])
def test_a_grid_of_all_places_is_the_value_itself(
    free: bool, starts: tuple[int, int], whole: bool
) -> None:
    model = grid_model(free, starts)
    compiled = qg.compile(model, num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in [(3, 5), *([(2, 7), (1, 4), (4, 2)] if free else [])]:
        if shape[0] > starts[0]:
            x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            (expected,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(compiled.run(None, {"x": x})[0], expected)
    assert any(isinstance(node, Gather) for node in compiled.graph.nodes) != whole


def test_samples_of_a_grid_are_independent() -> None:
    compiled = qg.compile(grid_model(free=True), num_threads=1)
    assert isinstance(compiled, qg.CompiledModel)
    x = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float32)
    compiled.run(None, {"x": x})
    with qg.InferQueue(compiled, 1, max_batch=8, max_delay=0.05) as queue:
        futures = [queue.submit({"x": x[i : i + 1]}) for i in range(6)]
        actual = np.concatenate([future.result()[0] for future in futures])
    np.testing.assert_array_equal(actual, x[:, None, None])


@st.composite
def known_grids(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A value and indices of its first axes: a grid of some axes in any order, changed at times."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    depth = draw(st.integers(1, len(shape)))
    rank = draw(st.integers(depth, 4))
    axes = draw(st.permutations(range(rank)))[:depth]
    outer = [draw(st.integers(1, 3)) for _ in range(rank)]
    for axis, size in zip(axes, shape, strict=False):
        outer[axis] = size
    columns = [np.indices(outer)[axis] for axis in axes]
    indices = np.stack(columns, -1).astype(np.int64)
    if draw(st.booleans()):
        place = tuple(draw(st.integers(0, size - 1)) for size in indices.shape)
        indices[place] = draw(st.integers(0, shape[place[-1]] - 1))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, indices


@moderate
@given(known_grids())
def test_known_indices_give_what_onnxruntime_gives(case: tuple[np.ndarray, np.ndarray]) -> None:
    x, indices = case
    node = helper.make_node("GatherND", ["x", "indices"], ["y"])
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    known = [numpy_helper.from_array(indices, "indices")]
    graph = helper.make_graph([node], "grid", ends, results, known)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (actual,) = qg.interpret(qg.import_model(model), {"x": x})
    np.testing.assert_array_equal(actual, expected)
