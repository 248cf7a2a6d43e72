"""A saved int8 model is smaller than the ONNX model that it was made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from tests.generators.onnx_models.float_types import all_of
from tests.generators.onnx_models.networks import FAMILIES

LEAST_NBYTES = 20_000
"""Size of ONNX models whose int8 file is smaller; the texts of a graph may be larger than less."""

QUICK = {("LSTM", False), ("LSTM", True), ("convolutions", True), ("spectrum", False)}
QUICK |= {("transformer", True)}

MAX_SHARES = {
    ("GRU", False): 0.97,
    ("GRU", True): 0.6,
    ("LSTM", False): 0.8,
    ("LSTM", True): 0.55,
    ("LSTM both ways", False): 0.75,
    ("LSTM both ways", True): 0.55,
    ("convolutions", False): 0.35,
    ("convolutions", True): 0.55,
    ("spectrum", False): 0.3,
    ("spectrum", True): 0.35,
    ("transformer", False): 0.4,
    ("transformer", True): 0.45,
}
"""(family, whether shapes are free) -> maximum size of the file, as a share of its ONNX model's."""

IN_FLOAT16 = [(name, free) for name in ("convolutions", "transformer") for free in (False, True)]
IN_FLOAT16 += [("LSTM both ways", True)]


def share(name: str, is_free: bool, is_half: bool, folder: Path) -> float:
    """Size of the int8 file over that of the ONNX model; the report counts no weight twice."""
    network = FAMILIES[name](is_free)
    proto = all_of(network.proto, "float16") if is_half else network.proto
    assert proto.ByteSize() > LEAST_NBYTES
    dtype = np.float16 if is_half else np.float32
    rngs = [np.random.default_rng(seed) for seed in range(4)]
    shapes = [shape for (shape,) in network.calibrated]
    samples = [{"x0": rng.standard_normal(shape).astype(dtype)} for rng in rngs for shape in shapes]
    compiled = qg.quantize_and_compile(proto, samples, num_threads=1, progress=False, verify=False)
    compiled.save(folder / "model.qgm")
    sizes = compiled.report.weights
    assert sizes.float_nbytes <= proto.ByteSize() * (2 if is_half else 1)
    assert sizes.quantized_nbytes <= (folder / "model.qgm").stat().st_size
    return (folder / "model.qgm").stat().st_size / proto.ByteSize()


def case(name: str, is_free: bool) -> object:
    """A test case, slow where another one covers it by default."""
    marks = () if (name, is_free) in QUICK else pytest.mark.slow
    return pytest.param(name, is_free, marks=marks, id=f"{name}, {'free' if is_free else 'fixed'}")


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "is_free"), [case(*key) for key in MAX_SHARES])
def test_an_int8_file_is_smaller_than_its_model(name: str, is_free: bool, tmp_path: Path) -> None:
    assert share(name, is_free, False, tmp_path) < MAX_SHARES[name, is_free]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_free"), IN_FLOAT16)
def test_an_int8_file_is_smaller_than_its_model_in_float16(
    name: str, is_free: bool, tmp_path: Path
) -> None:
    assert share(name, is_free, True, tmp_path) < 1
