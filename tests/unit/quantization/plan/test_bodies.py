"""Products in the bodies of loops are int8, whatever the length of the loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.importer.onnx import import_model
from quantglow.interpreter import interpret
from quantglow.interpreter.program import ReferenceExecutable
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Constant, Gemm, Loop, Quantize
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType
from quantglow.memory.planning import plan_program
from quantglow.transforms.float import optimize
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats

HIDDEN, WIDTH = 24, 8


def lstm(steps: int | None = None) -> onnx.ModelProto:
    """An LSTM over ``x`` [1, steps or any number, WIDTH]."""
    shapes = {"w": (1, 4 * HIDDEN, WIDTH), "r": (1, 4 * HIDDEN, HIDDEN)}
    constants = [numpy_helper.from_array(0.3 * floats(*s), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Transpose", ["x"], ["time_first"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["time_first", "w", "r"], ["y"], hidden_size=HIDDEN),
    ]
    make = helper.make_tensor_value_info
    x = make("x", TensorProto.FLOAT, [1, "T" if steps is None else steps, WIDTH])
    y = make("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(*steps: int) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(1, t, WIDTH, seed=i)} for i, t in enumerate(steps)]


def body_of(graph: Graph) -> Graph:
    (body,) = {node.body for node in graph.nodes if isinstance(node, Loop)}
    return body


def quantized(config: qg.QuantizationConfig | None = None) -> Graph:
    graph = optimize(import_model(lstm(20)))
    profile = qg.profile(graph, samples(20, 20), progress=False)
    return qg.quantize(graph, profile, config)


def signal_to_noise(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(10 * np.log10(np.square(expected).sum() / np.square(actual - expected).sum()))


def test_products_are_int8_and_the_state_is_float() -> None:
    body = body_of(quantized())
    (product,) = (node for node in body.nodes if isinstance(node, Contraction))
    assert product.x.type.dtype is DType.I8 and product.type.dtype is DType.F32
    assert isinstance(product.w, Constant) and product.w.type.dtype is DType.I8
    remaining = [n for n in body.compute_nodes() if not isinstance(n, Contraction | Quantize)]
    assert all(node.type.dtype.is_float for node in remaining)


@pytest.mark.parametrize(
    "config",
    [
        qg.QuantizationConfig(op_types_to_quantize=["Transpose"]),
        qg.QuantizationConfig(ignored_scope=qg.IgnoredScope(types=["LSTM"])),
    ],
)
def test_a_loop_that_is_left_out_has_a_float_body(config: qg.QuantizationConfig) -> None:
    assert not any(node.type.quant for node in body_of(quantized(config)).nodes)


def test_the_program_computes_what_the_graph_means() -> None:
    graph, (feeds,) = quantized(), samples(20)
    planned = plan_program(graph, None)
    expected = interpret(graph, feeds)
    executable = ReferenceExecutable(planned.program, planned.plan).run(feeds)
    for one, other in zip(executable, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_profile_sees_all_trips() -> None:
    graph = optimize(import_model(lstm(20)))
    profile = qg.profile(graph, samples(20, 20), progress=False)
    (product,) = (node for node in body_of(graph).nodes if isinstance(node, Gemm))
    assert profile.histograms[product.x.name].count == 2 * 20 * HIDDEN


def test_every_length_has_the_same_integers(tmp_path: Path) -> None:
    model = lstm()
    compiled = qg.quantize_and_compile(model, samples(20, 20, 30), verify=False, progress=False)
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm")
    for steps in (20, 11, 150, 6):
        (feeds,) = samples(steps)
        (actual,), (again,) = compiled.run(None, feeds), loaded.run(None, feeds)
        assert actual.tobytes() == again.tobytes()
        (expected,) = by_onnxruntime(model, feeds)
        assert signal_to_noise(actual, expected) > 25


@pytest.mark.parametrize("lengths", [(20, 30, 3), (20, 3, 30, 4, 11)])
def test_short_sequences_have_the_integers_of_their_graph(lengths: tuple[int, ...]) -> None:
    compiled = qg.quantize_and_compile(lstm(), samples(20, 20), verify=False, progress=False)
    programs = compiled.specialisations
    for feeds in samples(*lengths):
        graph = programs.graph_for({"x": feeds["x"].shape})
        (actual,), (expected,) = compiled.run(None, feeds), interpret(graph, feeds)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert "for all shapes" in [served.program for served in programs.served()]


def test_the_exported_loop_serves_every_length(tmp_path: Path) -> None:
    compiled = qg.quantize_and_compile(lstm(), samples(20, 30), verify=False, progress=False)
    compiled.export_onnx(tmp_path / "m.onnx")
    exported = onnx.load(tmp_path / "m.onnx")
    assert exported.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "T"
    for steps in (20, 7, 41):
        (feeds,) = samples(steps)
        (actual,), (expected,) = compiled.run(None, feeds), by_onnxruntime(exported, feeds)
        assert signal_to_noise(actual, expected) > 60
