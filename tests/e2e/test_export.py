"""Real networks in int8, exported: onnxruntime gives the integers of the interpreter.

No operator differs by more than a step, and in at most one integer of 50,000.  A differing integer
changes later ones, so the whole model is judged by its outputs.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest

from quantglow.export.onnx.model import export_onnx
from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.transforms.float import optimize
from tests.support.embedded import network
from tools.qdq_agreement import (
    CALIBRATION,
    LEVELS,
    int8_graph,
    local_agreement,
    output_agreement,
    run_onnx,
    total,
)

NETWORKS = ("mnist", "ppocr_cls")
RATE = 2e-5


@cache
def quantized(name: str) -> Graph:
    chosen = network(name)
    return int8_graph(chosen.path, chosen.shapes, chosen.feeds(CALIBRATION))


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_operator_gives_the_interpreters_integers(name: str, level: str) -> None:
    feeds = network(name).feeds(1, seed=1)
    actual = total(local_agreement(quantized(name), feeds, LEVELS[level]))
    assert actual.steps <= 1
    assert actual.rate <= RATE


@pytest.mark.slow_variants
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_of_the_whole_model_are_a_step_apart_at_most(name: str, level: str) -> None:
    feeds = network(name).feeds(10, seed=1)
    actual = total(output_agreement(quantized(name), feeds, LEVELS[level]))
    assert actual.count > 0
    assert actual.steps <= 1


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_float_graph_agrees_and_can_be_imported_again(name: str) -> None:
    chosen = network(name)
    graph = optimize(import_model(chosen.path, chosen.shapes))
    model, (feed,) = export_onnx(graph), chosen.feeds(1, seed=1)
    (expected,) = interpret(graph, feed)
    np.testing.assert_allclose(run_onnx(model, feed)[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        interpret(import_model(model), feed)[0], expected, rtol=1e-4, atol=1e-4
    )


def test_onnxruntime_fuses_all_of_mnist(tmp_path: object) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = f"{tmp_path}/optimized.onnx"
    options.log_severity_level = 4
    model = export_onnx(quantized("mnist"))
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    ops = {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}
    assert {"QLinearConv", "QGemm"} <= ops
    assert not {"Conv", "Gemm"} & ops
