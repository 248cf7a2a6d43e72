"""A detector of two stages with free height and width: parts of parts, and segments in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.runtime.shapes import general_programs
from quantglow.runtime.shapes.specializations import FOR_ALL
from tests.support.cascade import cascade, picture
from tests.unit.importer.onnx.onnx_models import by_onnxruntime

SIDES = st.integers(20, 60)


@pytest.fixture(scope="module")
def detectors(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The float detector with 1, 2 and 3 threads, the last one saved and loaded."""
    path = tmp_path_factory.mktemp("cascade") / "m.qgm"
    built = [qg.compile(cascade(), num_threads=threads) for threads in (1, 2, 3)]
    for compiled in built:
        for side in (24, 33, 50):
            compiled(picture(side, 70 - side, side))
    built[-1].save(path)
    return [*built[:2], qg.load(path, num_threads=3)]


@pytest.mark.slow
@given(SIDES, SIDES, st.integers(0, 2))
def test_every_image_gives_what_onnxruntime_gives(
    detectors: Any, height: int, width: int, number: int
) -> None:
    x = picture(height, width, height)
    actual, expected = detectors[number](x), by_onnxruntime(cascade(), {"x": x})
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fifty_new_sizes_make_no_new_program(
    detectors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = detectors[0]
    for side in (60, 24, 40, 72, 90, 31):
        for other in (30, 64, 91):
            compiled(picture(side, other, side))
    programs = len(compiled.report.programs)

    def refused(*_: object) -> Any:
        pytest.fail("a shape was imported")

    monkeypatch.setattr("quantglow.importer.onnx.source.Source.scope", refused)
    monkeypatch.setattr(general_programs, "program_for_all", refused)
    for number in range(50):
        compiled(picture(32 + number, 85 - number, number))
    assert len(compiled.report.programs) == programs


def test_the_second_stage_has_a_program_for_all_shapes(detectors: Any) -> None:
    entries = [e for e in detectors[0].report.programs if e.program == FOR_ALL]
    assert entries and all("1 RoiAlign in onnxruntime" in entry.elsewhere for entry in entries)


@pytest.mark.slow
def test_both_stages_are_int8_and_equal_with_all_threads(tmp_path: Path) -> None:
    samples = [picture(40 + seed, 44, seed) for seed in range(4)]
    built: list[Any] = [
        qg.quantize_and_compile(
            cascade(), samples, num_threads=threads, verify=False, progress=False
        )
        for threads in (1, 2, 3)
    ]
    layers = (layer for layer in built[0].report.layers if layer.op in ("Conv", "Gemm", "MatMul"))
    assert {layer.precision for layer in layers} == {"int8"}
    built[0].save(tmp_path / "m.qgm")
    built.append(qg.load(tmp_path / "m.qgm", num_threads=2))
    for side in (24, 41, 57):
        results = [compiled(picture(side, 63, side)) for compiled in built]
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(one, two)
