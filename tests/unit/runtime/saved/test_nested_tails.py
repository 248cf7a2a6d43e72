"""Detectors, whose parts are files inside of files: weights stand once in all of them together."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from quantglow.runtime.saved.tail_weights import whole_tail

import quantglow as qg
from quantglow.importer.onnx.weights.storage import LightModel, own_constants, stored_model
from quantglow.runtime.saved import members as members_module
from quantglow.runtime.saved import saving
from quantglow.runtime.saved.archives import BODY, REST, TAIL, TAIL_WEIGHTS, newest_version
from quantglow.runtime.saved.members import MOST_FILES
from quantglow.runtime.saved.saving import SavedTail
from quantglow.support.pages import together
from tests.support.cascade import picture
from tests.support.combinations import mark_slow
from tests.support.int8_tail import SIZE, int8_tail_model, staged_model
from tests.support.rcnn import HEADS, rcnn
from tests.unit.runtime.saved.test_saving import repacked, resigned

pytestmark = pytest.mark.usefixtures("in_parts")

ACCEPTED = {"some": 0.4, "none": 2.0}
"""Scores above which boxes reach the second head."""


def quantized(model: onnx.ModelProto, samples: list[np.ndarray]) -> Any:
    options: dict[str, Any] = {"num_threads": 1, "effort": "fast", "verify": False}
    return qg.quantize_and_compile(model, samples, progress=False, **options)


@pytest.fixture(scope="module", params=mark_slow(ACCEPTED, {"some"}))
def detector(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[onnx.ModelProto, Any, Path]:
    model, path = rcnn(ACCEPTED[request.param]), tmp_path_factory.mktemp("rcnn") / "m.qgm"
    compiled = quantized(model, [picture(40 + k, 44, k) for k in range(6)])
    compiled.save(path)
    return model, compiled, path


def tails_in(path: Path) -> Iterator[SavedTail]:
    """The tails of a file, outer ones first."""
    tail = saving.load(path).tail
    while tail is not None:
        yield tail
        tail = tail.files[REST].tail if REST in tail.files else None


@pytest.mark.slow
def test_an_int8_detector_is_half_as_large_as_a_float_one(detector: Any, tmp_path: Path) -> None:
    model, compiled, path = detector
    in_float, nbytes = qg.compile(model, num_threads=1), path.stat().st_size
    in_float(picture(40, 44))
    in_float.save(tmp_path / "float.qgm")
    assert nbytes < 0.5 * (tmp_path / "float.qgm").stat().st_size
    assert compiled.report.weights.quantized_nbytes == pytest.approx(nbytes, rel=0.1)


def test_only_the_innermost_tail_has_float_weights(detector: Any) -> None:
    _, compiled, path = detector
    tails = list(tails_in(path))
    assert len(tails) == 2
    is_float = compiled.staged.suffix.staged.why != ""
    for number, tail in enumerate(tails):
        proto = onnx.ModelProto.FromString(tail.model)
        has = {t.name for t in proto.graph.initializer if len(t.raw_data) >= 1024}
        assert has == ({"mask1", "mask2"} if is_float and number == 1 else set())


def test_float_weights_come_back_exactly(detector: Any) -> None:
    _, compiled, path = detector
    is_float = compiled.staged.suffix.staged.why != ""
    for tail in tails_in(path):
        whole = onnx.ModelProto.FromString(whole_tail(tail))
        for tensor in whole.graph.initializer:
            if tensor.name in HEADS and (is_float and tensor.name.startswith("mask")):
                array = onnx.numpy_helper.to_array(tensor)
                np.testing.assert_array_equal(array, HEADS[tensor.name], strict=True)


@pytest.mark.slow
def test_a_loaded_detector_gives_the_same_numbers(detector: Any, tmp_path: Path) -> None:
    _, compiled, path = detector
    loaded = qg.load(path, num_threads=2)
    loaded.save(tmp_path / "again.qgm")
    assert (tmp_path / "again.qgm").stat().st_size < 1.05 * path.stat().st_size
    images = [picture(24, 63, 1), picture(41, 44, 2), np.zeros((1, 3, 40, 40), np.float32)]
    for model in (loaded, qg.load(tmp_path / "again.qgm", num_threads=1)):
        for image in images:
            for one, other in zip(compiled(image), model(image), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("count", mark_slow([3, 10], {3}))
def test_files_inside_of_each_other_are_loaded(count: int, tmp_path: Path) -> None:
    """A Mask R-CNN of four levels has nine."""
    rng = np.random.default_rng(1)
    samples = [rng.normal(size=(64, SIZE)).astype(np.float32) for _ in range(3)]
    compiled = quantized(staged_model(count), samples)
    compiled.save(tmp_path / "m.qgm")
    assert len(list(tails_in(tmp_path / "m.qgm"))) == count
    loaded = qg.load(tmp_path / "m.qgm", num_threads=1)
    np.testing.assert_array_equal(loaded(samples[0]), compiled(samples[0]))


def test_codes_of_an_inner_tail_are_those_of_the_outer_one() -> None:
    def light() -> LightModel:
        return LightModel(int8_tail_model(), {})

    inner, places = stored_model(light(), (), lambda source: True)
    assert all("axis" in place for place in places.values())
    known = list(own_constants(bytes(together(inner)), places))
    assert {node.name for node in known} == places.keys()
    outer, places = stored_model(light(), known, lambda source: True)
    assert all(place["graph"] == name for name, place in places.items())
    assert len(outer) < 0.1 * len(inner)


def test_files_inside_of_a_file_do_not_expand_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zeros that are stored in an inner file shrink in the outer one, and would allow much more."""
    monkeypatch.setattr(members_module, "FREE_NBYTES", 1 << 20)
    path = tmp_path / "m.qgm"
    quantized(int8_tail_model(), [np.ones((32, SIZE), np.float32)]).save(path)

    def edit(members: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("manifest.json", bytes(3 << 20), zipfile.ZIP_STORED)
            archive.writestr("b", bytes(60 << 20), zipfile.ZIP_DEFLATED)
        members[REST] = buffer.getvalue()
        resigned(members)

    assert TAIL in zipfile.ZipFile(path).namelist()
    with pytest.raises(qg.FileFormatError, match="expand"):
        qg.load(repacked(path, edit, compression=zipfile.ZIP_DEFLATED), num_threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("member", mark_slow([REST, BODY], {REST}))
def test_too_many_files_inside_of_a_file_are_refused(member: str, tmp_path: Path) -> None:
    """Each file has the whole tail, so that the fault is their number."""
    path = tmp_path / "m.qgm"
    quantized(int8_tail_model(), [np.ones((32, SIZE), np.float32)]).save(path)
    tail = saving.load(path).tail
    assert tail is not None
    data = tail.suffix

    def edit(members: dict[str, bytes]) -> None:
        members.pop(TAIL_WEIGHTS, None)
        members.update({TAIL: whole_tail(tail), member: data})
        version = newest_version(members)
        resigned(members, version=version)

    for _ in range(MOST_FILES + 1):
        data = repacked(path, edit).read_bytes()
    (tmp_path / "deep.qgm").write_bytes(data)
    with pytest.raises(qg.FileFormatError, match="more than 64 files"):
        qg.load(tmp_path / "deep.qgm", num_threads=1)
