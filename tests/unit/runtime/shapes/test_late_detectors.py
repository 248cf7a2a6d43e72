"""Detectors of free shapes, compiled to their end: a new shape costs no new program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import quantglow as qg
from quantglow.runtime.shapes import general_programs
from quantglow.runtime.shapes.specializations import FOR_ALL, WHOLE
from quantglow.support.arrays import Array
from tests.support.detector import free_detector
from tests.unit.importer.onnx.onnx_models import by_onnxruntime, floats, model_of

SIDES = st.integers(5, 40)


def images(count: int) -> Iterator[Array]:
    """Images of as many different sizes."""
    for number in range(count):
        yield floats(1, 3, 9 + number, 70 - number, seed=number)


@pytest.fixture(scope="module")
def detectors(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A detector after its first shapes with 1, 2 and 3 threads, the last one saved and loaded."""
    path = tmp_path_factory.mktemp("late") / "detector.qgm"
    built = [qg.compile(free_detector(), num_threads=threads) for threads in (1, 2, 3)]
    for compiled in built:
        for x in images(3):
            compiled(x)
    built[-1].save(path)
    return [*built[:2], qg.load(path, num_threads=3)]


def outputs_agree(compiled: Any, x: Array) -> None:
    for one, other in zip(compiled(x), by_onnxruntime(free_detector(), {"x": x}), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@given(SIDES, SIDES, st.integers(0, 2))
def test_every_shape_gives_what_onnxruntime_gives(
    detectors: Any, height: int, width: int, number: int
) -> None:
    outputs_agree(detectors[number], floats(1, 3, height, width))


def test_a_model_is_compiled_to_its_end_before_and_after_it_is_saved(tmp_path: Path) -> None:
    """The report names what onnxruntime runs once the model has run."""
    compiled = qg.compile(free_detector(), num_threads=1)
    assert compiled.report.fallback == ()
    x = floats(1, 3, 12, 12)
    outputs_agree(compiled, x)
    (actual,) = compiled.report.fallback
    assert actual.name == "sel" and "importer" in actual.reason
    assert compiled.report.memory.peak_nbytes > 0
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    assert loaded.report.fallback == compiled.report.fallback
    for model in (compiled, loaded):
        for x in images(4):
            outputs_agree(model, x)
            build = model.specialisations.at({"x": x}).build
            backends = [segment.backend.name for segment in build.segments]
            assert backends == ["llvm", "onnxruntime", "llvm"]
        assert model.report.fallback == (actual,)


def test_fifty_new_shapes_make_no_new_program(
    detectors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = detectors[0]
    for side in (9, 40, 70):
        compiled(floats(1, 3, side, side))
    programs = len(compiled.report.programs)

    def refused(*_: object, **_options: object) -> Any:
        pytest.fail("a shape was imported")

    monkeypatch.setattr("quantglow.importer.onnx.source.Source.scope", refused)
    monkeypatch.setattr(general_programs, "program_for_all", refused)
    for x in images(50):
        compiled(x)
    assert len(compiled.report.programs) == programs


def test_the_report_tells_which_program_serves_which_shapes(detectors: Any) -> None:
    entries = [e for e in detectors[0].report.programs if e.program == FOR_ALL]
    assert "x [1, 3, H, W]" in {entry.shapes for entry in entries}
    assert all("1 NonMaxSuppression in onnxruntime" in entry.elsewhere for entry in entries)


def positions(dims: list[Any]) -> onnx.ModelProto:
    """The positions of what is not 0."""
    model = model_of([helper.make_node("NonZero", ["x"], ["i"])], {"x": floats(2, 3)}, ["i"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    model.graph.input[0].type.tensor_type.shape.Clear()
    for dim in dims:
        built = model.graph.input[0].type.tensor_type.shape.dim.add()
        built.dim_param = dim
    return model


def test_a_model_that_runs_whole_has_one_entry_in_the_report() -> None:
    compiled = qg.compile(positions(["N", "L"]), num_threads=1)
    for length in (3, 5, 7):
        x = floats(2, length)
        np.testing.assert_array_equal(compiled(x), np.nonzero(x))
    (entry,) = compiled.report.programs
    assert (entry.shapes, entry.program) == ("x [N, L]", WHOLE)
    assert "the whole model in onnxruntime" in entry.elsewhere and "NonZero" in entry.elsewhere


def test_an_image_without_elements_is_left_to_onnxruntime(detectors: Any) -> None:
    with pytest.raises(qg.InputError, match="cannot run on inputs"):
        detectors[1](np.zeros((1, 3, 0, 8), np.float32))


def narrow() -> onnx.ModelProto:
    """A model that slices from column 4 on: of four columns or fewer nothing is left, which is not
    compiled."""
    bounds = {"from": [4], "to": [1 << 30], "axis": [1]}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Slice", ["r", "from", "to", "axis"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, "columns"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, None])],
        [helper.make_tensor(k, TensorProto.INT64, [1], v) for k, v in bounds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_shape_that_cannot_be_compiled_decides_nothing_for_others() -> None:
    compiled: Any = qg.compile(narrow(), num_threads=1)
    for columns in (3, 2, 4):
        x = floats(3, columns)
        assert compiled(x).shape == (3, 0)
    for columns in (9, 12, 30):
        x = floats(3, columns)
        np.testing.assert_array_equal(compiled(x), np.maximum(x, 0)[:, 4:])
