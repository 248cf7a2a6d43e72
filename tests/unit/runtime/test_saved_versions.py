"""Files of older versions load to the numbers they gave, and new ones have each array once."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.runtime import archives, saving
from tests.free_models import Model
from tests.unit.runtime.test_saving import repacked, resigned

FILES = Path(__file__).with_name("saved_files")


TOLERANCE = {3: 1e-5}
"""Largest difference of float outputs; those of int8 are equal."""


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_file_of_an_older_version_gives_the_numbers_of_that_time(
    version: int, tmp_path: Path
) -> None:
    """``saved_files`` were written by version 0.1 in November 2026, at commit 4630fbe, and that of
    version 5 at b5b7082.
    """
    path = FILES / f"version{version}.qgm"
    assert manifest_of(path)["version"] == version
    loaded = qg.load(path, num_threads=1)
    loaded.save(tmp_path / "again.qgm")
    with np.load(path.with_suffix(".npz")) as arrays:
        feeds = {name: arrays[name] for name in arrays.files if not name.startswith("y")}
        wanted = [arrays[f"y{i}"] for i in range(len(arrays.files) - len(feeds))]
    for model in (loaded, qg.load(tmp_path / "again.qgm", num_threads=1)):
        for found, right in zip(model.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(found, right, rtol=0, atol=TOLERANCE.get(version, 0))


def manifest_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


def network(kind: str, length: int | str) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A network of some 10,000 weights or more, and the shape of its input."""
    if kind == "image":
        model = Model(1, {"x": (1, 8, 6, length)})
        x = model.op("Relu", model.op("Conv", "x", model.normal(64, 8, 3, 3)))
        y = model.op("Conv", x, model.normal(64, 64, 3, 3))
        return model.proto(y, (1, 64, None, None)), (1, 8, 6, 12)
    model = Model(1, {"x": (length, 1, 64)})
    gates = {"GRU": 3, "LSTM": 4}[kind]
    weights = model.normal(1, gates * 96, 64), model.normal(1, gates * 96, 96)
    x = model.op(kind, "x", *weights, hidden_size=96)
    x = model.op("Squeeze", x, model.constant([1], np.int64))
    return model.proto(model.op("MatMul", x, model.normal(96, 64)), (None, 1, 64)), (12, 1, 64)


@pytest.fixture(scope="module", params=["image", "GRU", "LSTM"])
def fixed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A saved int8 model of fixed shapes, and the size of its ONNX model."""
    return saved(*network(request.param, 12), tmp_path_factory.mktemp(request.param))


def saved(proto: onnx.ModelProto, shape: tuple[int, ...], folder: Path) -> tuple[Path, int]:
    rng = np.random.default_rng(2)
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    compiled = qg.quantize_and_compile(proto, samples, num_threads=1, progress=False, verify=False)
    compiled.save(folder / "model.qgm")
    return folder / "model.qgm", proto.ByteSize()


def test_an_int8_file_is_smaller_than_its_onnx_model(fixed: tuple[Path, int]) -> None:
    path, nbytes = fixed
    assert path.stat().st_size < nbytes


@pytest.mark.parametrize("kind", ["image", "GRU", "LSTM"])
def test_a_file_for_all_shapes_is_smaller_than_its_onnx_model(kind: str, tmp_path: Path) -> None:
    path, nbytes = saved(*network(kind, "L"), tmp_path)
    assert path.stat().st_size < nbytes


def test_no_array_is_stored_twice(fixed: tuple[Path, int]) -> None:
    with zipfile.ZipFile(fixed[0]) as archive:
        arrays = archives.arrays_in(archive, manifest_of(fixed[0]))
    contents = [(array.dtype, array.shape, array.tobytes()) for array in arrays.values()]
    assert len(set(contents)) == len(contents)


DAMAGE = {
    "no such array": {"arrays": [[10**6]]},
    "too few": {"arrays": [[]]},
    "no numbers": {"arrays": [["x"]]},
    "no scales": {"scales": []},
    "a negative one": {"scales": [-1]},
    "none": {"arrays": 3},
    "a negative size": {"packed": [[0, "<f4", [-1]]]},
    "a size beyond the file": {"packed": [[0, "<f4", [10**30]]]},
    "objects": {"packed": [[0, "|O", [1]]]},
    "no type": {"packed": [[0, "x", [1]]]},
    "too few packed": {"packed": []},
    "a base that is later": {"deltas": [[0, 1]]},
    "a base of another type": {"deltas": [[1, 0]]},
    "halves of what": {"halves": ["x"]},
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_numbers_of_arrays_are_refused(fixed: tuple[Path, int], case: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        resigned(members, **DAMAGE[case])

    with pytest.raises(qg.FileFormatError, match="Remedy"):
        saving.load(repacked(fixed[0], edit))
