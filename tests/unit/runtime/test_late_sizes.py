"""Models of free shapes in which nodes decide sizes are compiled to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import quantglow as qg
from tests.unit.importer.onnx.onnx_models import floats
from tests.unit.runtime.test_partly_compiled import SIZES, free_detector, outputs_agree


def test_every_free_shape_is_compiled_to_the_end() -> None:
    compiled = qg.compile(free_detector(), num_threads=1)
    for shape in SIZES:
        outputs_agree(compiled, shape)
        actual = compiled.specialisations.at({"x": floats(*shape)})
        assert parts(actual.build) == ["llvm", "onnxruntime", "llvm"]
        assert any(node.op == "Conv" for node in actual.graph.nodes)


def parts(build: Any) -> list[str]:
    """The backends of a program's segments, in their order."""
    return [segment.backend.name for segment in build.segments]


def test_a_saved_model_of_free_shapes_is_compiled_again(tmp_path: Path) -> None:
    compiled = qg.compile(free_detector(), num_threads=1)
    outputs_agree(compiled, SIZES[0])
    compiled.save(tmp_path / "free.qgm")
    loaded = qg.load(tmp_path / "free.qgm", num_threads=1)
    for shape in SIZES:
        outputs_agree(loaded, shape)
        actual = loaded.specialisations.at({"x": floats(*shape)})
        assert parts(actual.build) == ["llvm", "onnxruntime", "llvm"]


def test_the_report_names_what_onnxruntime_runs_of_a_model_that_is_compiled_on_first_use(
    tmp_path: Path,
) -> None:
    compiled = qg.compile(free_detector(), num_threads=1)
    assert compiled.report.fallback == ()
    compiled(floats(*SIZES[0]))
    actual = {node.name: node.reason for node in compiled.report.fallback}
    assert set(actual) == {"sel"} and "importer" in actual["sel"]
    assert compiled.report.memory.peak_nbytes > 0
    compiled.save(tmp_path / "free.qgm")
    loaded = qg.load(tmp_path / "free.qgm", num_threads=1)
    assert loaded.report.fallback == compiled.report.fallback
    loaded(floats(*SIZES[1]))
    assert {node.name for node in loaded.report.fallback} == set(actual)
