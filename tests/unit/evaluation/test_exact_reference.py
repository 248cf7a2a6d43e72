"""onnxruntime as a reference adds products of bytes exactly, on x86 without VNNI, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import quantglow as qg
from quantglow.cli.demo import mnist
from quantglow.evaluation.baselines.onnxruntime_quantizer import quantize_file
from quantglow.evaluation.metrics import sqnr_db
from quantglow.ort.float_results import running
from quantglow.ort.quantizer_input import quantizer_input
from quantglow.ort.session import Session
from tests.support.onnxruntime_sums import saturates

ALIKE_DB = 40.0
"""SQNR of results that differ by single steps at ties, if at all."""


def first_of_all(results: list[list[np.ndarray]]) -> np.ndarray:
    """The first outputs of all samples."""
    return np.concatenate([first for first, *_ in results])


def test_a_reference_is_exact_on_every_processor(tmp_path: Path) -> None:
    """The model is a classifier that onnxruntime quantized: its weights fill eight bits."""
    example = mnist()
    shapes = {example.input_name: (1, *example.images.shape[1:])}
    feeds = [{example.input_name: image[None]} for image in example.calibration[:20]]
    source, path = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    source.write_bytes(quantizer_input(example.model, shapes).SerializeToString())
    quantize_file(source, path, feeds)
    compiled = qg.compile(str(path), num_threads=1)
    ours = first_of_all([compiled.run(None, value) for value in feeds])
    with running(str(path), feeds) as answer:
        assert sqnr_db(first_of_all(answer()[0]), ours) > ALIKE_DB
    session, usual = Session(str(path)), Session(str(path), exact_sums=False)
    assert sqnr_db(first_of_all([session.run(value) for value in feeds]), ours) > ALIKE_DB
    results = sqnr_db(first_of_all([usual.run(value) for value in feeds]), ours)
    assert (results < ALIKE_DB) == saturates()
