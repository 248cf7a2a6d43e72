"""The accuracy contract on the MNIST network takes the fewest steps out of int8."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from quantglow.quantization.plan.float_rules import OVERRIDDEN

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


def precisions(compiled: qg.CompiledModel) -> set[str]:
    return {layer.precision for layer in compiled.report.layers}


@pytest.mark.slow
def test_a_strict_contract_takes_int16_and_float(samples: np.ndarray) -> None:
    loose, strict = quantized(samples), quantized(samples, max_drop=10 ** (-54 / 20))
    assert precisions(strict) == {"int8", "int16", "float"}
    assert strict.report.outputs[0].sqnr_db > max(loose.report.outputs[0].sqnr_db, 53.9)


def test_the_report_says_what_was_done(samples: np.ndarray) -> None:
    strict = quantized(samples, max_drop=0.002)
    (note,) = (n for n in strict.report.notes if n.startswith("accuracy control"))
    raised = [f"{n.name} to float" for n in strict.report.layers if n.reason == OVERRIDDEN]
    assert raised
    assert all(step in note for step in raised)
    assert note.count(" to int16") >= 1


@pytest.mark.slow
def test_the_same_contract_gives_the_same_model(samples: np.ndarray) -> None:
    one, other = (quantized(samples, max_drop=0.002).graph for _ in range(2))
    assert str(one) == str(other)


def test_an_impossible_contract_raises_with_the_best_model(samples: np.ndarray) -> None:
    figures = itertools.chain([1.0], itertools.repeat(0.5))
    with pytest.raises(qg.AccuracyDropError) as caught:
        quantized(samples, max_drop=0.1, validation_fn=lambda model: next(figures))
    assert isinstance(caught.value.best, qg.CompiledModel)
