"""Profile files, merging and binding to the model."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input
from quantglow.ir.types import f32
from quantglow.profiling import Histogram, Profile
from quantglow.support.errors import FileFormatError, ProfileMismatchError

A = Histogram.of(np.float32([1, -2, 0.25, 1e-40]))
B = Histogram.of(np.float32([7, 0]))
EXAMPLE = Profile("hash", {"a": A, "nothing": Histogram(), "b/c:d": B}, 3)


def graph(source_hash: str, name: str = "a") -> Graph:
    x = Input(name=name, tensor=f32(1))
    return Graph(inputs=(x,), outputs=((name, x),), source_hash=source_hash)


def test_a_saved_profile_is_loaded(tmp_path: Path) -> None:
    EXAMPLE.save(tmp_path / "p.npz")
    assert Profile.load(tmp_path / "p.npz") == EXAMPLE


def test_equal_profiles_give_equal_files_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EXAMPLE.save(tmp_path / "a.npz")
    monkeypatch.setattr(time, "time", lambda: 2e9)
    EXAMPLE.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_can_open_the_counts(tmp_path: Path) -> None:
    EXAMPLE.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert archive["counts"].sum() == 6


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    EXAMPLE.save(path)
    with pytest.raises(TypeError):
        Profile({1, 2}, {"a": A}, 1).save(path)  # type: ignore[arg-type]
    assert Profile.load(path) == EXAMPLE
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


@given(data=st.data())
def test_damage_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damage") / "p.npz"
    EXAMPLE.save(path)
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:position])
    else:
        flipped = bytes([whole[position] ^ data.draw(st.integers(1, 255))])
        path.write_bytes(whole[:position] + flipped + whole[position + 1 :])
    try:
        loaded = Profile.load(path)
    except FileFormatError:
        return
    # Some bytes of a zip archive (times, attributes) mean nothing.
    assert loaded == EXAMPLE


def test_an_altered_manifest_is_noticed(tmp_path: Path) -> None:
    EXAMPLE.save(tmp_path / "p.npz")
    with zipfile.ZipFile(tmp_path / "p.npz") as archive:
        manifest = json.loads(archive.read("manifest.json"))
        counts = archive.read("counts.npy")
    manifest["tensors"]["a"]["maximum"] = float.hex(100.0)
    with zipfile.ZipFile(tmp_path / "q.npz", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("counts.npy", counts)
    with pytest.raises(FileFormatError, match="checksum"):
        Profile.load(tmp_path / "q.npz")


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "q.npz", "w") as archive:
        archive.writestr("manifest.json", '{"format": "quantglow-profile", "version": 99}')
        archive.writestr("counts.npy", b"")
    with pytest.raises(FileFormatError):
        Profile.load(tmp_path / "q.npz")


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot read profile"):
        Profile.load(tmp_path / "none.npz")


def test_merging_joins_tensors_and_counts() -> None:
    merged = EXAMPLE.merge(Profile("hash", {"a": B}, 2))
    assert merged.histograms["a"] == A.merge(B)
    assert (merged.samples, set(merged.histograms)) == (5, set(EXAMPLE.histograms))


def test_profiles_of_different_models_do_not_merge() -> None:
    with pytest.raises(ProfileMismatchError, match="other"):
        EXAMPLE.merge(Profile("other", {}))


def test_a_profile_fits_its_own_model() -> None:
    EXAMPLE.check(graph("hash"))


def test_a_profile_of_another_model_is_refused_with_cause_and_remedy() -> None:
    with pytest.raises(ProfileMismatchError, match=r"'?another'?.*Remedy: profile"):
        EXAMPLE.check(graph("another"))


def test_a_profile_without_the_inputs_is_refused() -> None:
    with pytest.raises(ProfileMismatchError, match=r"\['z'\]"):
        EXAMPLE.check(graph("hash", "z"))
