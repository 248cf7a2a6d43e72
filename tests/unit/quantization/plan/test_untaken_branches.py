"""A branch that no calibration sample takes stays float; the rest of the network is int8."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import quantglow as qg
from quantglow.quantization.plan.float_rules import UNTAKEN
from tests.support.combinations import covering

node = helper.make_node
Arrays = dict[str, NDArray[np.float32]]
WIDTH, HIDDEN = 24, 32


def stack(weights: str, x: str, y: str, prefix: str) -> list[onnx.NodeProto]:
    """y = two products of x, with a normalization, a Relu and a residual between them."""
    a, n, r, s, t = (f"{prefix}{letter}" for letter in "anrst")
    return [
        node("MatMul", [x, f"{weights}0"], [a], name=a),
        node("LayerNormalization", [a, "gamma", "beta"], [n], name=n),
        node("Relu", [n], [r], name=r),
        node("MatMul", [r, f"{weights}1"], [s], name=s),
        node("Add", [s, n], [t], name=t),
        node("MatMul", [t, f"{weights}2"], [y], name=y),
    ]


def branch(name: str, nodes: list[onnx.NodeProto], result: str) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [info])


def chosen(condition: str, y: str, then: list[onnx.NodeProto], other: list[onnx.NodeProto]) -> Any:
    """An If; the last node of each branch gives its result."""
    return node(
        "If",
        [condition],
        [y],
        then_branch=branch(f"{y}_then", then, then[-1].output[0]),
        else_branch=branch(f"{y}_else", other, other[-1].output[0]),
    )


@cache
def branching(kind: str, free: bool = False) -> onnx.ModelProto:
    """A stack, and another one where the first column of x is above 0.5.

    ``kind``: what the second is: "other" weights, "same" weights as the first, "nested" in two Ifs,
    or "all" there is: nothing is computed elsewhere.
    """
    weights = {"other": "v", "same": "u", "nested": "v", "all": "v"}[kind]
    source = "x" if kind == "all" else "first"
    then = stack(weights, source, "second", "v")
    other = [node("Identity", [source], ["kept"])]
    if kind == "nested":
        deeper = [*stack("u", source, "third", "w")]
        inner = chosen("far", "inner", then, deeper)
        then = [node("Greater", ["level", "high"], ["far"]), inner]
    nodes = [
        *([] if kind == "all" else stack("u", "x", "first", "u")),
        node("Gather", ["x", "first_column"], ["column"], axis=1),
        node("ReduceMax", ["column"], ["level"], keepdims=0),
        node("Greater", ["level", "low"], ["above"]),
        chosen("above", "chosen", then, other),
        *([] if kind == "all" else [node("MatMul", ["chosen", "u0"], ["y"], name="y")]),
    ]
    if kind == "all":
        nodes.append(node("Relu", ["chosen"], ["y"]))
    rng = np.random.default_rng(3)
    known = {"low": np.float32(0.5), "high": np.float32(1.5)}
    known |= {"gamma": np.linspace(0.1, 3, HIDDEN), "beta": rng.normal(size=HIDDEN) * 0.1}
    shapes = [(WIDTH, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, WIDTH)]
    for name in "uv":
        for index, shape in enumerate(shapes):
            known[f"{name}{index}"] = rng.normal(size=shape) / np.sqrt(shape[0])
    batch = "n" if free else 4
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.int64(0), "first_column"),
            *(numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in known.items()),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def x_of(level: float, rows: int = 4, seed: int = 0) -> Arrays:
    x = np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)
    x[:, 0] = level
    return {"x": x}


def samples(count: int = 8, level: float = 0.0, rows: int = 4) -> list[Arrays]:
    return [x_of(level, rows, seed) for seed in range(count)]


def assert_close(model: onnx.ModelProto, compiled: Any, feeds: Arrays, share: float = 0.05) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,), (actual,) = session.run(None, feeds), compiled.run(None, feeds)
    assert np.linalg.norm(actual - expected) <= share * np.linalg.norm(expected)


KINDS = ("other", "same", "nested", "all")
LEVELS = (0.0, 1.0, 2.0)
"""The first is that of the samples, the others take one branch or the nested one."""

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "symmetric": {"preset": "performance"},
    "int16": {"int16_activations": "auto"},
    "contract": {"max_drop": 1e-3},
    "entropy": {"calibrate_method": "entropy"},
}


@pytest.mark.slow_variants
@pytest.mark.parametrize(("options", "kind"), covering([*OPTIONS], KINDS))
def test_a_branch_that_is_not_taken_stays_float(kind: str, options: str) -> None:
    model = branching(kind)
    inputs = OPTIONS[options]
    compiled = qg.quantize_and_compile(model, samples(), num_threads=1, progress=False, **inputs)
    layers = {layer.name: layer for layer in compiled.report.layers}
    assert layers["vs"].precision == "float"
    assert layers["vs"].reason == UNTAKEN
    assert kind == "all" or options == "contract" or layers["us"].precision != "float"
    for level in LEVELS:
        assert_close(model, compiled, x_of(level, seed=99))


@pytest.mark.slow_variants
@pytest.mark.parametrize(("free", "kind"), covering([False, True], KINDS))
def test_saved_models_and_threads_give_the_same(kind: str, free: bool, tmp_path: Path) -> None:
    model = branching(kind, free)
    data = samples() + samples(2, rows=7) * free
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    compiled.save(tmp_path / "m.qgm")
    loaded = [qg.load(tmp_path / "m.qgm", num_threads=threads) for threads in (1, 2, 3)]
    for level in LEVELS:
        for rows in (4, 7, 9) if free else (4,):
            feeds = x_of(level, rows, seed=5)
            (expected,) = compiled.run(None, feeds)
            graph = compiled.specialisations.at(feeds).graph
            np.testing.assert_allclose(
                expected, qg.interpret(graph, feeds)[0], rtol=1e-4, atol=1e-5
            )
            for other in loaded:
                np.testing.assert_array_equal(other.run(None, feeds)[0], expected)
            assert_close(model, compiled, feeds)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_alone_is_enough(kind: str) -> None:
    model = branching(kind)
    known = qg.profile(model, samples(), progress=False)
    compiled = qg.quantize_and_compile(model, known, num_threads=1, progress=False)
    assert UNTAKEN in {layer.reason for layer in compiled.report.layers}
    for level in LEVELS:
        assert_close(model, compiled, x_of(level, seed=99), 0.1)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("main", "kind"), covering([4, 7], KINDS))
def test_a_branch_taken_at_one_of_several_shapes_is_int8(kind: str, main: int) -> None:
    """Its values have ranges, whichever shape decides."""
    model = branching(kind, free=True)
    data = samples(8, rows=main) + samples(2, 1.0, rows=11 - main) + samples(1, 2.0, 11 - main)
    compiled = qg.quantize_and_compile(model, data, num_threads=1, progress=False)
    assert UNTAKEN not in {layer.reason for layer in compiled.report.layers}
    for level in LEVELS:
        for rows in (4, 7, 5):
            assert_close(model, compiled, x_of(level, rows, seed=99), 0.1)


CONFIGS = (
    {"equalization": None},
    {"recovery": None},
    {"int16_activations": "auto"},
    {"quantize_output": True},
)


@pytest.mark.parametrize(("options", "kind"), covering(CONFIGS, KINDS), ids=str)
def test_a_graph_is_quantized_with_any_techniques(kind: str, options: dict[str, Any]) -> None:
    graph = qg.import_model(branching(kind))
    profile = qg.profile(graph, samples(), progress=False)
    int8 = qg.quantize(graph, profile, qg.QuantizationConfig(**options), data=samples())
    for level in LEVELS:
        feeds = x_of(level, seed=99)
        (expected,), (actual,) = qg.interpret(graph, feeds), qg.interpret(int8, feeds)
        assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


def test_a_diagnosis_covers_the_rest() -> None:
    diagnosis = qg.diagnose(branching("nested"), samples(), progress=False)
    assert {layer.reason for layer in diagnosis.layers if layer.name in ("vs", "ws")} == {UNTAKEN}
