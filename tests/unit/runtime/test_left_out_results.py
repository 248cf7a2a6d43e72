"""A Loop whose last state has no name ends the process in onnxruntime 1.32, but not through us."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.support.arrays import Array
from quantglow.support.processes.isolation import call_isolated
from tests.support.free_dimensions import RESIZES, freed, resized


def looped() -> onnx.ModelProto:
    """A Loop over the positions of values, which lists its states; the last one has no name."""
    info, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [
            node("Identity", ["on"], ["still"]),
            node("Relu", ["state"], ["next"]),
            node("Identity", ["next"], ["kept"]),
        ],
        "body",
        [info("trip", 7, []), info("on", 9, []), info("state", 1, None)],
        [info("still", 9, []), info("next", 1, None), info("kept", 1, None)],
    )
    nodes = [
        node("Tanh", ["x"], ["y"]),
        node("NonZero", ["y"], ["found"]),
        node("Cast", ["found"], ["start"], to=1),
        node("Loop", ["trips", "", "start"], ["", "all"], body=body),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [info("x", 1, [3])],
        [info("all", 1, None), info("found", 7, None)],
        [numpy_helper.from_array(np.array(2), "trips")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_at_other_sizes(arrays: list[Array], threads: int) -> list[Array]:
    """For a child process: all outputs at several sizes."""
    compiled = qg.compile(freed(looped(), True), num_threads=threads)
    sizes = (resized(arrays[0], resize) for resize in RESIZES)
    return [array for x in sizes for array in compiled.run(None, {"x": x})]


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 3])
def test_a_loop_at_other_sizes(threads: int) -> None:
    x = np.array([1, 0, 2], np.float32)
    place = f"{__name__}:run_at_other_sizes"
    results = call_isolated(place, [x], {"threads": threads}, seconds=120)
    for resize, states, value in zip(RESIZES, results[::2], results[1::2], strict=True):
        (places,) = np.nonzero(resized(x, resize))
        np.testing.assert_array_equal(value, [places])
        np.testing.assert_array_equal(states, [[places]] * 2)


def run_cut(arrays: list[Array]) -> list[Array]:
    """For a child process: the Loop is behind a NonZero, in onnxruntime."""
    return list(qg.compile(looped()).run(None, {"x": arrays[0]}))


@pytest.mark.slow
def test_a_loop_behind_the_cut() -> None:
    x = np.array([1, 0, 2], np.float32)
    states, actual = call_isolated(f"{__name__}:run_cut", [x], seconds=120)
    np.testing.assert_array_equal(actual, [[0, 2]])
    np.testing.assert_array_equal(states, [[[0.0, 2.0]]] * 2)
