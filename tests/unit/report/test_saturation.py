"""onnxruntime's sums of products of bytes: exact as a reference, on x86 without VNNI saturated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.backends.onnxruntime.session import Session
from quantglow.cli.data import mnist
from quantglow.frontend.onnxruntime.ort_quantizer_input import quantizer_input
from quantglow.report.accuracy.metrics import sqnr_db
from quantglow.report.accuracy.onnxruntime_check import running
from quantglow.report.peers import quantizer_comparison, saturation
from quantglow.report.peers.onnxruntime_quantizer import quantize_file
from quantglow.report.peers.saturation import SATURATES, saturates

ALIKE_DB = 40.0
"""SQNR of results that differ by single steps at ties, if at all."""


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A classifier that onnxruntime quantized, with weights that fill eight bits; images."""
    folder, example = tmp_path_factory.mktemp("int8"), mnist()
    shapes = {example.input_name: (1, *example.images.shape[1:])}
    feeds = [{example.input_name: image[None]} for image in example.calibration[:20]]
    source, target = folder / "float.onnx", folder / "int8.onnx"
    source.write_bytes(quantizer_input(example.model, shapes).SerializeToString())
    quantize_file(source, target, feeds)
    return target, feeds


def joined(results: list[list[np.ndarray]]) -> np.ndarray:
    """The first outputs of all samples."""
    return np.concatenate([first for first, *_ in results])


def test_a_reference_is_exact_on_every_processor(
    int8: tuple[Path, list[dict[str, np.ndarray]]],
) -> None:
    path, feeds = int8
    compiled = qg.compile(str(path), num_threads=1)
    ours = joined([compiled.run(None, given) for given in feeds])
    with running(str(path), feeds) as answer:
        assert sqnr_db(joined(answer()[0]), ours) > ALIKE_DB
    session = Session(str(path))
    assert sqnr_db(joined([session.run(given) for given in feeds]), ours) > ALIKE_DB
    asked = Session(str(path), exact_sums=False)
    usual = sqnr_db(joined([asked.run(given) for given in feeds]), ours)
    assert (usual < ALIKE_DB) == saturates()


@pytest.mark.parametrize("known", [True, False])
def test_a_comparison_says_where_sums_saturate(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "saturates", lambda: known)
    note = saturation.saturation_note()
    rows = [quantizer_comparison.QuantizerFigures("x")] * 2
    found = quantizer_comparison.QuantizerComparison(rows, 1, "seen", 1, caveat=note)
    assert found.notes == ((SATURATES,) if known else ())
    assert found.to_json()["caveat"] == note
