"""The comparison of quantizers: its figures, its rows, and its clear failures."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from scipy import special

from benchmarks.accuracy import accuracy, evaluation, quantizers
from benchmarks.accuracy.accuracy import Result, Settings
from benchmarks.accuracy.quantizers import QUANTIZERS, NotInstalledError, Quantizer, chosen
from benchmarks.networks import ocr_lines, ppocr, registry, samples
from benchmarks.support.runtime import outputs_of


def test_sqnr_is_ten_decibels_a_factor_ten_of_energy() -> None:
    assert evaluation.sqnr(np.ones(4), np.full(4, 0.9)) == pytest.approx(20)


def test_agreement_is_of_the_largest_output() -> None:
    assert evaluation.agreement(np.eye(4), np.eye(4)[[0, 1, 3, 2]]) == 0.5


def test_a_pattern_chooses_all_of_a_tool() -> None:
    assert [c.name for c in chosen(["quantglow"])] == ["quantglow"]
    actual = [c.name for c in chosen(["onnxruntime*", "nncf*"])]
    assert actual == [name for name in QUANTIZERS if not name.startswith("quantglow")]


def test_a_line_is_read_without_blanks_and_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppocr, "characters", lambda: np.array(["", "a", "b"]))
    best = np.array([[0, 1, 1, 0, 1, 2], [2, 2, 2, 2, 2, 0]])
    assert list(ppocr.texts(np.eye(3)[best])) == ["aab", "b"]


def test_pages_depend_on_the_seed_alone() -> None:
    assert np.array_equal(samples.pages(1, 5), samples.pages(2, 5)[:1])
    assert not np.array_equal(samples.pages(1, 5), samples.pages(1, 6))


def test_an_unknown_quantizer_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantizer 'nothing'"):
        chosen(["nothing"])


def test_a_missing_package_names_the_remedy() -> None:
    with pytest.raises(NotInstalledError, match="pip install"):
        Quantizer("x", quantizers.ours, ("no_such_package",)).require()


def test_a_process_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    network, nothing = registry.network("mnist"), np.zeros((1, 10))
    measurement = accuracy.measure(network, QUANTIZERS["nncf"], Settings(1, 1), nothing, None)
    assert measurement.error == "exit code 1"
    assert accuracy.markdown_row(measurement).count("|") == len(accuracy.HEADER) + 1


def test_margin_is_against_the_best_peer() -> None:
    results = [
        Result("net", "quantglow", 30.0),
        Result("net", "quantglow without recovery", 40.0),
        Result("net", "nncf", 20.0),
        Result("net", "onnxruntime minmax", 25.0),
        Result("net", "nncf mixed", error="failed"),
    ]
    assert accuracy.margins(results) == ["- net: +5.00 dB against onnxruntime minmax (25.00 dB)"]


def test_one_network_is_compared_end_to_end() -> None:
    names = ["quantglow without recovery", "onnxruntime minmax"]
    comparison = accuracy.compare("mnist", chosen(names), Settings(samples=4, threads=1))
    assert [r.quantizer for r in comparison] == ["float", *names]
    assert all(r.error is None for r in comparison)
    assert all((r.sqnr_db or 0) > 10 and (r.accuracy or 0) > 0.95 for r in comparison[1:])


def test_only_what_counts_of_an_output_is_noise() -> None:
    logits, moved = np.array([[3.0, 1.0]]), np.array([[4.0, 2.2]])
    assert evaluation.sqnr(logits, moved, ocr_lines.centered) == pytest.approx(20)


def test_a_network_without_its_softmax_gives_its_logits() -> None:
    network = registry.network("ppocr_cls")
    (image, *_), _ = samples.text_lines_labeled()
    paths = (network.path(), registry.network("ppocr_cls_logits").path())
    sessions = [
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in paths
    ]
    outputs = [outputs_of(session, {"x": image[None]})[0] for session in sessions]
    np.testing.assert_allclose(special.softmax(outputs[1], axis=1), outputs[0], rtol=1e-5)


def test_logits_of_another_end_are_refused() -> None:
    with pytest.raises(ValueError, match="not from Softmax"):
        ocr_lines.without_softmax(onnx.load(registry.network("mnist").path()))
