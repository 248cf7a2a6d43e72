"""A Loop whose last state has no name ends the process in onnxruntime 1.32, but not through us."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import quantglow as qg
from quantglow.processes.isolation import called
from quantglow.types import Array
from tests.fuzz.free_sizes import fitting, programs_of
from tests.generators.onnx_models import models
from tests.support.free_dimensions import RESIZES, freed, resized

LEFT_OUT = 101014301
"""A model with such Loops that cannot be compiled at other shapes."""


def run_at_other_sizes(arrays: list[Array], threads: int) -> list[Array]:
    """For a child process: outputs or errors, nothing else."""
    case = models.drawn(LEFT_OUT)
    compiled = programs_of(qg.compile(freed(case.model, True), num_threads=threads))
    assert compiled is not None
    for resize in RESIZES:
        sample = {name: resized(array, resize) for name, array in case.samples[0].items()}
        feeds = fitting(compiled, sample)
        try:
            compiled.at(feeds).run(feeds)
        except qg.QuantglowError:
            continue
    return []


@pytest.mark.parametrize("threads", [1, 3])
def test_a_model_that_runs_in_onnxruntime_at_other_shapes(threads: int) -> None:
    assert called(f"{__name__}:run_at_other_sizes", [], {"threads": threads}, seconds=120) == []


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


def run_cut(arrays: list[Array]) -> list[Array]:
    """For a child process: the Loop is behind a NonZero, in onnxruntime."""
    return list(qg.compile(looped()).run(None, {"x": arrays[0]}))


def test_a_loop_behind_the_cut() -> None:
    x = np.array([1, 0, 2], np.float32)
    states, found = called(f"{__name__}:run_cut", [x], seconds=120)
    np.testing.assert_array_equal(found, [[0, 2]])
    np.testing.assert_array_equal(states, [[[0.0, 2.0]]] * 2)
