"""Files of all versions load to the numbers they gave, and new ones have each array once."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from quantglow.runtime.saved import archives, members, saving
from quantglow.runtime.saved.members import Allowance
from tests.generators.onnx_models.networks import FAMILIES
from tests.unit.runtime.saved.test_saving import repacked, resigned

FILES = Path(__file__).with_name("saved_files")


TOLERANCE = {3: 1e-5}
"""Largest difference of float outputs; those of int8 are equal."""

IN_PARTS = (3, 8, 10, 11)
"""Versions whose files have a compiled part and the rest of the model."""

OF_PARTS = {"version8": 3, "version10": 2, "version11": 3, "nested": 4}
"""Number of calls, some of which lead to nothing, whose results ``parts.npz`` has of a file.  A
file in ``nested`` has parts itself."""


def feeds_and_outputs(version: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The arrays that a file of a version was fed, and those that it gave."""
    with np.load(FILES / f"version{version}.npz") as arrays:
        feeds = {name: arrays[name] for name in arrays.files if not name.startswith("y")}
        return feeds, [arrays[f"y{i}"] for i in range(len(arrays.files) - len(feeds))]


@pytest.mark.slow_variants
@pytest.mark.parametrize("version", range(1, 15))
def test_a_file_of_a_version_gives_the_numbers_of_its_time(version: int, tmp_path: Path) -> None:
    """``saved_files`` were written by version 0.1 in November 2026, at commit 4630fbe, and that of
    version 5 at b5b7082; those of versions 6 to 14 when these began.
    """
    path = FILES / f"version{version}.qgm"
    assert manifest_of(path)["version"] == version
    loaded = qg.load(path, num_threads=1)
    models = [loaded, loaded.with_num_threads(3)]
    if version not in IN_PARTS:
        loaded.save(tmp_path / "again.qgm")
        models.append(qg.load(tmp_path / "again.qgm", num_threads=1))
    feeds, expected = feeds_and_outputs(version)
    for model in models:
        for value, right in zip(model.run(None, feeds), expected, strict=True):
            tolerance = TOLERANCE.get(version, 0)
            np.testing.assert_allclose(value, right, rtol=0, atol=tolerance, strict=True)


@pytest.mark.slow_variants
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", OF_PARTS)
def test_a_model_in_parts_gives_the_bits_of_its_time_at_all_sizes(name: str, threads: int) -> None:
    """They were computed at commit 92135ac, as that of ``nested``."""
    loaded = qg.load(FILES / f"{name}.qgm", num_threads=threads)
    with np.load(FILES / "parts.npz") as arrays:
        calls = [dict(items_behind(f"{name} {n} ", arrays)) for n in range(OF_PARTS[name])]
    for call in calls:
        results = loaded.run(None, {n: array for n, array in call.items() if not n.isdigit()})
        for position, array in enumerate(results):
            np.testing.assert_array_equal(array, call[str(position)], strict=True)


def items_behind(prefix: str, arrays: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays whose names begin so, by the rest of their names."""
    for name in arrays:
        if name.startswith(prefix):
            yield name.removeprefix(prefix), arrays[name]


REFUSALS = (qg.OptionError, qg.ModelError, qg.InputError)


@pytest.mark.parametrize("call", ["save", "export_onnx", "export_bundle"])
@pytest.mark.parametrize("version", IN_PARTS)
def test_a_model_in_parts_runs_only(version: int, call: str, tmp_path: Path) -> None:
    """It is written neither before it has run nor afterwards."""
    loaded = qg.load(FILES / f"version{version}.qgm", num_threads=1)
    for _ in range(2):
        with pytest.raises(REFUSALS, match=r"Remedy: \w+") as caught:
            getattr(loaded, call)(tmp_path / "written")
        assert not list(tmp_path.iterdir())
        loaded.run(None, feeds_and_outputs(version)[0])
    assert call != "save" or "compile or quantize the original" in str(caught.value)


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
    def edit(contents: dict[str, bytes]) -> None:
        resigned(contents, **DAMAGE[case])

    with pytest.raises(qg.FileFormatError, match="Remedy"):
        saving.load(repacked(fixed, edit))


@pytest.mark.parametrize("version", IN_PARTS)
def test_a_model_in_parts_describes_itself(version: int) -> None:
    """Its report is that of the file, before it has run and afterwards."""
    loaded = qg.load(FILES / f"version{version}.qgm", num_threads=1)
    texts = []
    for _ in range(2):
        texts.append((repr(loaded), str(loaded.get_outputs()), loaded.report.layers))
        assert str(loaded.report) and not loaded.has_independent_samples()
        loaded.run(None, feeds_and_outputs(version)[0])
    assert texts[0] == texts[1]


# -- files in parts, which may be damaged


Edit = Callable[[dict[str, bytes]], None]


def altered_json(member: str, change: Callable[[Any], object]) -> Edit:
    """Change a text of a file."""

    def edit(contents: dict[str, bytes]) -> None:
        text = json.loads(contents[member])
        change(text)
        contents[member] = json.dumps(text).encode()
        resigned(contents)

    return edit


def replaced(member: str, data: bytes) -> Edit:
    """Exchange a member of a file."""

    def edit(contents: dict[str, bytes]) -> None:
        contents[member] = data
        resigned(contents)

    return edit


def with_input(name: str) -> bytes:
    """The model behind the head, with an input that nothing reads."""
    with zipfile.ZipFile(FILES / "version11.qgm") as archive:
        tail = onnx.ModelProto.FromString(archive.read(archives.TAIL))
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
    tail.graph.input.append(value)
    return tail.SerializeToString()


DAMAGED_PARTS: dict[str, tuple[Edit, str]] = {
    "no model": (replaced(archives.TAIL, b"no model"), "the tail is damaged"),
    "an output of no part": (
        altered_json(archives.TAIL_TEXT, lambda text: text["output_names"].append("nowhere")),
        "no part gives.*nowhere",
    ),
    "an input of no part": (
        replaced(archives.TAIL, with_input("nowhere")),
        "no part gives the tail.*nowhere",
    ),
    "no such constant": (
        altered_json(archives.TAIL_WEIGHTS, lambda places: places["w1"].update(graph="nowhere")),
        "",
    ),
    "no such tensor": (
        altered_json(archives.TAIL_WEIGHTS, lambda places: places.update(w9=places["w1"])),
        "",
    ),
    "no place": (altered_json(archives.TAIL_WEIGHTS, lambda places: places.update(w1={})), ""),
    "no mapping": (altered_json(archives.TAIL_WEIGHTS, lambda places: places.update(w1=3)), ""),
    "another layout": (
        altered_json(archives.TAIL_WEIGHTS, lambda places: places["w1"].update(perm=[0, 0])),
        "",
    ),
    "a rest of another model": (
        replaced(archives.REST, (FILES / "version12.qgm").read_bytes()),
        "",
    ),
}


def copied(version: int, folder: Path) -> Path:
    return Path(shutil.copy(FILES / f"version{version}.qgm", folder))


@pytest.mark.parametrize("kind", DAMAGED_PARTS)
def test_damaged_parts_are_refused(kind: str, tmp_path: Path) -> None:
    edit, message = DAMAGED_PARTS[kind]
    with pytest.raises(qg.FileFormatError, match=f"{message}.*Remedy"):
        qg.load(repacked(copied(11, tmp_path), edit), num_threads=1)


def test_files_inside_of_a_file_do_not_expand_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zeros that are stored in an inner file shrink in the outer one, and would allow much more."""
    monkeypatch.setattr(members, "FREE_NBYTES", 1 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", bytes(3 << 20), zipfile.ZIP_STORED)
        archive.writestr("b", bytes(60 << 20), zipfile.ZIP_DEFLATED)
    edit = replaced(archives.REST, buffer.getvalue())
    path = repacked(copied(11, tmp_path), edit, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(qg.FileFormatError, match="expand"):
        qg.load(path, num_threads=1)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "member"), [(8, archives.REST), (10, archives.BODY)])
def test_too_many_files_inside_of_a_file_are_refused(
    version: int, member: str, tmp_path: Path
) -> None:
    path = copied(version, tmp_path)
    for _ in range(members.MOST_FILES + 1):
        path.write_bytes(repacked(path, replaced(member, path.read_bytes())).read_bytes())
    with pytest.raises(qg.FileFormatError, match="more than 64 files"):
        qg.load(path, num_threads=1)
