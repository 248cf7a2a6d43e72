"""Subgraphs that declare other shapes than they get do not end the process in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.isolation import called
from quantglow.runtime.fallback_model import PartlyCompiledModel
from quantglow.types import Array
from tests.fuzz.free_sizes import fitting, programs_of
from tests.generators.onnx_models import models
from tests.support.free_dimensions import RESIZES, freed, resized

DECLARES_ITS_FIRST_SHAPE = 101014301
"""A Loop whose body does, in a model that cannot be compiled at other shapes."""


def run_at_other_sizes(arrays: list[Array], threads: int) -> list[Array]:
    """For a child process: outputs or errors, nothing else."""
    case = models.drawn(DECLARES_ITS_FIRST_SHAPE)
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
def test_a_body_that_declares_its_first_shape(threads: int) -> None:
    assert called(f"{__name__}:run_at_other_sizes", [], {"threads": threads}, seconds=120) == []


def test_the_tail_of_a_model_has_bodies_without_shapes() -> None:
    """NonZero is in onnxruntime, and so is a Loop over what it finds."""
    node = onnx.helper.make_node
    info = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Identity", ["on"], ["still"]), node("Relu", ["state"], ["next"])],
        "body",
        [info("trip", 7, []), info("on", 9, []), info("state", 1, [1, 3])],
        [info("still", 9, []), info("next", 1, [1, 3])],
    )
    nodes = [
        node("Tanh", ["x"], ["y"]),
        node("NonZero", ["y"], ["found"]),
        node("Cast", ["found"], ["start"], to=1),
        node("Loop", ["trips", "", "start"], ["end"], body=body),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "model",
        [info("x", 1, [3])],
        [info("end", 1, [1, None])],
        [onnx.numpy_helper.from_array(np.array(2), "trips")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    compiled = qg.compile(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert isinstance(compiled, PartlyCompiledModel)
    loop = onnx.load_from_string(compiled.tail).graph.node[-1]
    assert not any(v.type.tensor_type.HasField("shape") for v in loop.attribute[0].g.output)
    x = np.array([1, 0, 2], np.float32)
    np.testing.assert_array_equal(compiled(x), [[0.0, 2.0]])
