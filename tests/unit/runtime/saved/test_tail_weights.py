"""Weights behind operators that decide shapes stand once in a file, as the int8 part has them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.runtime.saved.archives import TAIL, TAIL_TEXT, TAIL_WEIGHTS, TAIL_WEIGHTS_VERSION
from tests.support.cascade import cascade, picture
from tests.support.combinations import mark_slow
from tests.support.int8_tail import chosen_rows, int8_tail_model
from tests.unit.runtime.saved.test_saved_versions import manifest_of
from tests.unit.runtime.saved.test_saving import repacked, resigned

pytestmark = pytest.mark.usefixtures("in_parts")

ROWS = (9, 1, 30, 0, 4)
"""Rows that arrive behind NonZero in a stream of calls."""


@pytest.fixture(scope="module")
def compiled() -> Any:
    samples = [chosen_rows(8 + seed, seed) for seed in range(6)]
    compiled = qg.quantize_and_compile(
        int8_tail_model(), samples, num_threads=1, effort="fast", progress=False, verify=False
    )
    assert isinstance(compiled, qg.PartlyCompiledModel) and compiled.staged is not None
    assert compiled.staged.is_int8
    return compiled


@pytest.fixture(scope="module")
def path(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tail") / "m.qgm"
    compiled.save(folder)
    return folder


@pytest.mark.slow
def test_an_int8_file_is_half_as_large_as_a_float_one(path: Path, tmp_path: Path) -> None:
    in_float = qg.compile(int8_tail_model(), num_threads=1)
    in_float(chosen_rows(5, 0))
    in_float.save(tmp_path / "float.qgm")
    assert path.stat().st_size < 0.6 * (tmp_path / "float.qgm").stat().st_size


def test_the_tail_has_no_weights_of_its_own(path: Path) -> None:
    assert manifest_of(path)["version"] == TAIL_WEIGHTS_VERSION
    with zipfile.ZipFile(path) as archive:
        tail = onnx.ModelProto.FromString(archive.read(TAIL))
        places = json.loads(archive.read(TAIL_WEIGHTS))
    assert places.keys() == {"w1", "w2"}
    large = [t for t in tail.graph.initializer if t.name in places]
    assert all(len(t.raw_data) < 0.1 * 4 * np.prod(t.dims) for t in large)


def test_the_report_has_the_sizes_of_both_parts(compiled: Any, path: Path) -> None:
    sizes = compiled.report.weights
    assert 0.9 < sizes.float_nbytes / int8_tail_model().ByteSize() < 1
    assert 0.2 < sizes.quantized_nbytes / sizes.float_nbytes < 0.45
    assert sizes.quantized_nbytes < path.stat().st_size


SCRIPT = """
import sys, numpy as np, quantglow as qg
model = qg.load(sys.argv[1], num_threads=int(sys.argv[2]))
with np.load(sys.argv[3]) as arrays:
    for number in range(len(arrays.files) // 3):
        found = model.run(None, {"x": arrays[f"x{number}"]})
        for one, name in zip(found, "yz"):
            np.testing.assert_array_equal(one, arrays[f"{name}{number}"], strict=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", mark_slow([1, 2, 3], {2}))
def test_a_fresh_process_gives_the_same_numbers(
    compiled: Any, path: Path, threads: int, tmp_path: Path
) -> None:
    """onnxruntime computes the tail where nothing is chosen, with the weights of the file."""
    arrays = {}
    for number, count in enumerate(ROWS):
        x = chosen_rows(count, 50 + number)
        y, z = compiled.run(None, {"x": x})
        arrays |= {f"x{number}": x, f"y{number}": y, f"z{number}": z}
    np.savez(tmp_path / "a.npz", **arrays)
    command = [sys.executable, "-c", SCRIPT, str(path), str(threads), str(tmp_path / "a.npz")]
    subprocess.run(command, check=True, timeout=120)


def test_a_loaded_model_is_saved_again(compiled: Any, path: Path, tmp_path: Path) -> None:
    qg.load(path, num_threads=1).save(tmp_path / "again.qgm")
    again, x = qg.load(tmp_path / "again.qgm", num_threads=1), chosen_rows(7, 9)
    for one, other in zip(again.run(None, {"x": x}), compiled.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "again.qgm").stat().st_size < 1.05 * path.stat().st_size


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no such constant": lambda places: places["w1"].update(graph="nowhere"),
    "no such tensor": lambda places: places.update(w9=places["w1"]),
    "no place": lambda places: places.update(w1={}),
    "no mapping": lambda places: places.update(w1=3),
    "another layout": lambda places: places["w1"].update(perm=[0, 0]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_places_are_refused(path: Path, case: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        places = json.loads(members[TAIL_WEIGHTS])
        DAMAGE[case](places)
        members[TAIL_WEIGHTS] = json.dumps(places).encode()
        resigned(members)

    with pytest.raises(qg.FileFormatError, match="Remedy"):
        qg.load(repacked(path, edit), num_threads=1)


def test_a_tail_that_reads_what_no_part_gives_is_refused(path: Path) -> None:
    """A name fewer among the late ones is a cut elsewhere."""

    def edit(members: dict[str, bytes]) -> None:
        text = json.loads(members[TAIL_TEXT])
        text["late"].remove("places")
        members[TAIL_TEXT] = json.dumps(text).encode()
        resigned(members)

    with pytest.raises(qg.FileFormatError, match=r"no part gives the tail.*places.*Remedy"):
        qg.load(repacked(path, edit), num_threads=1)


@pytest.mark.slow
def test_both_stages_of_a_detector_come_back(tmp_path: Path) -> None:
    samples = [picture(40 + seed, 44, seed) for seed in range(4)]
    compiled = qg.quantize_and_compile(
        cascade(), samples, num_threads=1, effort="fast", verify=False, progress=False
    )
    compiled.save(tmp_path / "m.qgm")
    loaded = qg.load(tmp_path / "m.qgm", num_threads=2)
    for side in (24, 41, 57):
        for one, other in zip(
            compiled(picture(side, 63, 1)), loaded(picture(side, 63, 1)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
