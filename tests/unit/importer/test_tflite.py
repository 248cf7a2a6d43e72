"""TFLite files become QDQ: exact, or refused where they are damaged or unknown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.importer.tflite.files import TfliteFile
from quantglow.importer.tflite.operators import convert
from tests.support.tflite_builder import Part, tflite_file
from tests.support.tflite_cases import CASES, IMAGE, conv, inputs_of

DAMAGED_FILES = 300


def expected_conv(file: TfliteFile, x: Any) -> Any:
    """The integers of ``conv()``: exact sums, rounded once, half to even."""
    _, w, b, result = file.tensors
    assert w.quant is not None
    assert b.quant is not None
    assert result.quant is not None
    assert w.value is not None
    assert b.value is not None
    steps = np.pad(x.astype(np.int64) + 7, ((0, 0), (1, 1), (1, 1), (0, 0)))
    array = np.zeros((1, 5, 4, 8))
    for row in range(5):
        for column in range(4):
            window = steps[0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            sums = np.tensordot(w.value.astype(np.int64), window, 3) + b.value
            array[0, row, column] = sums * b.quant.scale.astype(np.float64)
    zero = result.quant.zero_point[0]
    return np.rint(array / result.quant.scale[0]) + zero


def test_a_convolution_gives_the_integers_of_its_definition() -> None:
    data = conv()
    (x,) = inputs_of([(IMAGE.shape, np.int8)], 3)
    expected = expected_conv(TfliteFile.of(data), x).clip(-128, 127)
    np.testing.assert_array_equal(qg.compile(data, num_threads=1)(x), expected)


FLOAT = {
    "average-pool-padded": "its activation is not fused into the pool",
    "dequantize": "its result is float",
    "quantize": "its operand is float",
    "softmax-beta": "its factor is not folded into the scale",
}
"""Cases with float operators between their rounding points, and why."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - FLOAT.keys()))
def test_operators_of_int8_stay_int8(name: str) -> None:
    graph = qg.import_model(CASES[name]())
    inner = [node.type.dtype.numpy for node in graph.nodes if node.operands]
    assert all(dtype == np.int8 for dtype in inner)


def test_a_path_is_recognised_by_its_ending(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(conv())
    assert qg.import_model(path).source_hash == qg.import_model(conv()).source_hash
    assert qg.import_model(os.fspath(path)).inputs[0].name == "x"


def test_a_free_batch_stays_free() -> None:
    part = Part((1, 3), scale=0.1, signature=(-1, 3))
    data = tflite_file("RELU", {"x": part}, Part((1, 3), scale=0.1, signature=(-1, 3)))
    compiled = qg.compile(data)
    assert compiled.get_inputs()[0].shape == ["batch", 3]
    assert compiled(np.full((5, 3), -4, np.int8)).tolist() == [[0, 0, 0]] * 5


def test_all_operators_without_a_rule_are_named() -> None:
    data = tflite_file("ELU", {"x": IMAGE}, IMAGE)
    with pytest.raises(qg.ConversionError, match="no rule for the operators ELU"):
        qg.compile(data)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(qg.ModelError, match=r"nowhere\.tflite: cannot be read"):
        qg.compile("nowhere.tflite")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(qg.OptionError, match=r"package tflite.*quantglow\[tflite\]"):
        qg.compile(conv())


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with some bytes changed, or cut."""
    bytes_ = bytearray(data)
    for place in rng.integers(8, len(data), rng.integers(1, 4)):
        bytes_[place] = rng.integers(256)
    return bytes(bytes_[: rng.integers(9, len(data))] if rng.random() < 0.2 else bytes_)


def test_damaged_files_are_refused_or_read() -> None:
    rng, makers = np.random.default_rng(0), list(CASES.values())
    refused = 0
    for number in range(DAMAGED_FILES):
        data = damaged(makers[number % len(makers)](), rng)
        try:
            convert(data, "the file")
        except qg.ConversionError as error:
            refused += "Remedy" in str(error)
    assert refused > DAMAGED_FILES / 20
