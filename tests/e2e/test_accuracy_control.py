"""The accuracy contract on the MNIST network: the fewest layers go back to float."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg

DATA = Path(__file__).resolve().parents[2] / "datasets"


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    images = np.load(DATA / "mnist_test.npz")["calibration_images"][:8]
    return (images.astype(np.float32) / 255)[:, None, None]


def quantized(samples: np.ndarray, **options: object) -> qg.CompiledModel:
    model, shape = DATA / "mnist_cnn.onnx", qg.import_model(DATA / "mnist_cnn.onnx").inputs[0].type
    data = [x.reshape(shape.shape) for x in samples]
    return qg.quantize_and_compile(model, data, verify=True, progress=False, **options)


def float_layers(compiled: qg.CompiledModel) -> int:
    return sum(layer.precision == "float" for layer in compiled.report.layers)


def test_a_contract_that_int8_fulfils_keeps_every_layer_int8(samples: np.ndarray) -> None:
    assert float_layers(quantized(samples, max_drop=0.5)) == 0


def test_a_strict_contract_brings_some_layers_back(samples: np.ndarray) -> None:
    loose = quantized(samples)
    strict = quantized(samples, max_drop=0.002)
    assert float_layers(strict) > 0
    assert strict.report.outputs[0].sqnr_db > loose.report.outputs[0].sqnr_db


def test_an_impossible_contract_raises_with_the_best_model(samples: np.ndarray) -> None:
    figures = itertools.chain([1.0], itertools.repeat(0.5))
    with pytest.raises(qg.AccuracyDropError) as caught:
        quantized(samples, max_drop=0.1, validation_fn=lambda model: next(figures))
    assert isinstance(caught.value.best, qg.CompiledModel)
