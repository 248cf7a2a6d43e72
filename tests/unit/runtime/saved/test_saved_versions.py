"""Files of all versions load to the numbers they gave, and new ones have each array once."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.runtime.saved import archives, saving
from quantglow.runtime.saved.members import Allowance
from tests.generators.onnx_models.networks import FAMILIES
from tests.unit.runtime.saved.test_saving import repacked, resigned

FILES = Path(__file__).with_name("saved_files")


TOLERANCE = {3: 1e-5}
"""Largest difference of float outputs; those of int8 are equal."""


@pytest.mark.slow_variants
@pytest.mark.parametrize("version", range(1, 14))
def test_a_file_of_a_version_gives_the_numbers_of_its_time(version: int, tmp_path: Path) -> None:
    """``saved_files`` were written by version 0.1 in November 2026, at commit 4630fbe, and that of
    version 5 at b5b7082; those of versions 6 to 13 when these began.
    """
    path = FILES / f"version{version}.qgm"
    assert manifest_of(path)["version"] == version
    loaded = qg.load(path, num_threads=1)
    loaded.save(tmp_path / "again.qgm")
    with np.load(path.with_suffix(".npz")) as arrays:
        feeds = {name: arrays[name] for name in arrays.files if not name.startswith("y")}
        expected = [arrays[f"y{i}"] for i in range(len(arrays.files) - len(feeds))]
    for model in (loaded, qg.load(tmp_path / "again.qgm", num_threads=1)):
        for value, right in zip(model.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=0, atol=TOLERANCE.get(version, 0))


def manifest_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        data: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return data


@pytest.fixture(scope="module", params=["convolutions", "LSTM"])
def fixed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved int8 model of fixed shapes."""
    network = FAMILIES[request.param](False)
    ((shape,),) = network.calibrated
    rng = np.random.default_rng(2)
    samples = [{"x0": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    compiled = qg.quantize_and_compile(
        network.proto, samples, num_threads=1, progress=False, verify=False
    )
    path = tmp_path_factory.mktemp("fixed") / "model.qgm"
    compiled.save(path)
    return path


def test_no_array_is_stored_twice(fixed: Path) -> None:
    with zipfile.ZipFile(fixed) as archive:
        arrays = archives.arrays_in(archive, manifest_of(fixed), Allowance.of(archive))
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
def test_damaged_numbers_of_arrays_are_refused(fixed: Path, case: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        resigned(members, **DAMAGE[case])

    with pytest.raises(qg.FileFormatError, match="Remedy"):
        saving.load(repacked(fixed, edit))
