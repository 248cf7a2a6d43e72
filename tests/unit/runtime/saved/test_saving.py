"""A saved model loads equal or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Add
from quantglow.ir.types import f32
from quantglow.runtime.saved import archives, saving, stored_arrays
from quantglow.runtime.saved import members as members_module
from tests.support.effort import moderate
from tests.support.small_network import small_model, small_samples

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module", params=[(), ("features",)], ids=["int8", "int16"])
def compiled(request: pytest.FixtureRequest) -> qg.CompiledModel:
    chosen = {"int16_activations": request.param}
    return qg.quantize_and_compile(small_model(), small_samples(), num_threads=1, **chosen)


@pytest.fixture(scope="module")
def saved(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.qgm"
    compiled.save(path)
    return path


def test_a_loaded_model_gives_the_same_integers(compiled: Any, saved: Path) -> None:
    loaded = qg.load(saved, num_threads=1)
    for x in small_samples(4, seed=9):
        for value, expected in zip(loaded(x), compiled(x), strict=True):
            np.testing.assert_array_equal(value, expected)


def test_a_loaded_model_has_the_same_graph(compiled: Any, saved: Path) -> None:
    assert str(qg.load(saved).graph) == str(compiled.graph)


LOADING = """
import sys
from quantglow.runtime.saved.saving import load
print(load(sys.argv[1]).graph, end="")
"""


@pytest.mark.slow_variants
def test_files_load_in_a_process_that_imports_nothing_else(compiled: Any, saved: Path) -> None:
    command = [sys.executable, "-c", LOADING, str(saved)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert results.stdout == str(compiled.graph)


def test_a_loaded_model_keeps_the_accuracy_of_its_report(compiled: Any, saved: Path) -> None:
    assert qg.load(saved).report.layers == compiled.report.layers


def test_a_loaded_model_saves_the_same_members(saved: Path, tmp_path: Path) -> None:
    qg.load(saved, num_threads=1).save(tmp_path / "again.qgm")
    with zipfile.ZipFile(saved) as one, zipfile.ZipFile(tmp_path / "again.qgm") as other:
        assert one.read("graph.txt") == other.read("graph.txt")


def test_saving_leaves_one_file(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.qgm")
    assert os.listdir(tmp_path) == ["model.qgm"]


def test_saving_into_a_missing_folder_is_refused(compiled: Any, tmp_path: Path) -> None:
    with pytest.raises(qg.FileFormatError, match="cannot write"):
        compiled.save(tmp_path / "no" / "model.qgm")


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, compiled: Any, monkeypatch: Any) -> None:
    path = tmp_path / "model.qgm"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(qg.FileFormatError, match="disk full"):
        compiled.save(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["model.qgm"], b"old")


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(qg.FileFormatError, match="cannot read"):
        qg.load(tmp_path / "none.qgm")


@moderate
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_refused(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    assert refused(saved, data[: int(share * len(data))])


@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@example(share=0.9992862285691234, flip=1)  # the directory's offset: a seek before the start
def test_an_altered_byte_is_refused_or_changes_nothing(
    saved: Path, share: float, flip: int
) -> None:
    data = bytearray(saved.read_bytes())
    data[int(share * len(data))] ^= flip
    assert refused(saved, bytes(data)) or unchanged(saved, bytes(data))


def refused(saved: Path, data: bytes) -> bool:
    path = saved.with_name("damaged.qgm")
    path.write_bytes(data)
    try:
        saving.load(path)
    except qg.FileFormatError as error:
        return "Remedy" in str(error)
    return False


def unchanged(saved: Path, data: bytes) -> bool:
    """Zip has bytes that mean nothing here: dates, attributes."""
    path = saved.with_name("damaged.qgm")
    path.write_bytes(data)
    return str(saving.load(path).graph) == str(saving.load(saved).graph)


def repacked(saved: Path, edit: Callable[[dict[str, bytes]], None], **options: Any) -> Path:
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    path = saved.with_name("repacked.qgm")
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def resigned(members: dict[str, bytes], **changes: Any) -> None:
    """Change the manifest and make its hashes fit again, as an attacker would."""
    manifest = json.loads(members["manifest.json"])
    names = [name for name in members if name != "manifest.json"]
    manifest["members"] = {name: archives.describe(members[name]) for name in names}
    manifest.update(changes)
    manifest["sha256"] = archives.manifest_digest(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_of_other_compressions_are_refused(saved: Path, method: int) -> None:
    path = repacked(saved, lambda members: None, compression=method)
    with pytest.raises(qg.FileFormatError, match="packed in an unknown way"):
        saving.load(path)


@pytest.mark.slow_variants
def test_members_that_expand_too_far_are_refused(saved: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["report.json"] = b" " * (members_module.FREE_NBYTES + (16 << 20))
        resigned(members)

    path = repacked(saved, edit, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(qg.FileFormatError, match="expand to more than 64 times"):
        saving.load(path)


def test_a_member_gives_no_more_than_its_directory_says(saved: Path) -> None:
    """The stream of the member holds 1,000 times as much as its entry."""
    path = saved.with_name("lying.qgm")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", bytes(1 << 20))
        archive.getinfo("graph.txt").file_size = 1 << 10
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile, match="CRC"):
        members_module.read_member(archive, "graph.txt")


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr("inside", bytes(10_000))
    info, data = inner.getinfo("inside"), (tmp_path / "inner.zip").read_bytes()
    path = tmp_path / "bomb.qgm"
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("outside", data[: 10_000 + info.header_offset + 30 + len("inside")])
        info.header_offset = 30 + len("outside")
        outer.filelist.append(info)
    with pytest.raises(qg.FileFormatError, match="members overlap"):
        saving.load(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "constants/99.npy", "extra.txt"])
def test_unknown_members_are_refused(saved: Path, name: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[name] = b"x"
        resigned(members)

    with pytest.raises(qg.FileFormatError, match="members"):
        saving.load(repacked(saved, edit))


def test_another_version_is_refused(saved: Path) -> None:
    path = repacked(saved, lambda members: resigned(members, version=2))
    with pytest.raises(qg.FileFormatError, match="version 2"):
        saving.load(path)


def spread(members: dict[str, bytes], number: int) -> dict[str, Any]:
    """Take one array out of the packed ones; changes of the manifest."""
    entries = json.loads(members["manifest.json"])["packed"]
    start, remaining = 0, b""
    for each, dtype, shape in entries:
        end = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
        remaining += b"" if each == number else members["constants/packed.bin"][start:end]
        start = end
    members["constants/packed.bin"] = remaining
    return {"packed": [entry for entry in entries if entry[0] != number]}


def test_pickled_arrays_are_refused(saved: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        evil = saved.with_name("evil.npy")
        np.save(evil, np.array([object()]), allow_pickle=True)
        changes = spread(members, 0)
        members["constants/0.npy"] = evil.read_bytes()
        resigned(members, **changes)

    with pytest.raises(qg.FileFormatError, match="Object arrays cannot be loaded"):
        saving.load(repacked(saved, edit))


def test_a_constant_that_is_not_the_one_named_is_refused(saved: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        changes = spread(members, 0)
        members["constants/0.npy"] = stored_arrays.npy(np.zeros(3, np.float32))
        resigned(members, **changes)

    with pytest.raises(qg.FileFormatError, match="constant"):
        saving.load(repacked(saved, edit))


def test_a_report_with_numbers_that_are_none_is_refused(saved: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        report = json.loads(members["report.json"])
        report["memory"] = dict.fromkeys(report["memory"], float("inf"))
        members["report.json"] = json.dumps(report).encode()
        resigned(members)

    with pytest.raises(qg.FileFormatError, match="report"):
        qg.load(repacked(saved, edit))


@pytest.mark.parametrize("report", [{}, {"target": 1}, [], {"layers": 3}], ids=str)
def test_a_damaged_report_is_refused(saved: Path, report: Any) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["report.json"] = json.dumps(report).encode()
        resigned(members)

    with pytest.raises(qg.FileFormatError, match="report"):
        qg.load(repacked(saved, edit))


def test_a_new_file_is_read_back_before_the_old_one_goes(
    tmp_path: Path, compiled: Any, monkeypatch: Any
) -> None:
    path = tmp_path / "model.qgm"
    path.write_bytes(b"old")
    write = zipfile.ZipFile.writestr

    def damaging(archive: zipfile.ZipFile, name: Any, data: Any, method: int) -> None:
        is_array = str(name).startswith("constants/")
        write(archive, name, data[:-1] + bytes([data[-1] ^ 1]) if is_array else data, method)

    monkeypatch.setattr(zipfile.ZipFile, "writestr", damaging)
    with pytest.raises(qg.FileFormatError, match=r"was not saved.*checksum of 'constants/packed"):
        compiled.save(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["model.qgm"], b"old")


def test_a_graph_with_two_constants_of_one_name_is_not_saved(tmp_path: Path) -> None:
    x = Input(name="x", tensor=f32(2))
    first = Add(name="first", x=x, y=Constant(name="c", value=np.ones(2, np.float32)))
    last = Add(name="last", x=first, y=Constant(name="c", value=np.zeros(2, np.float32)))
    with pytest.raises(qg.FileFormatError, match=r"(?s)was not saved.*'c'.*Remedy"):
        saving.save(tmp_path / "twice.qgm", Graph((x,), (("last", last),)), {})
    assert os.listdir(tmp_path) == []
