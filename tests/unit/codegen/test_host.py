"""LLVM's description of the processor is cached, and the cache is validated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quantglow.codegen.llvm import machine as host
from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.compiler import detect_host
from quantglow.codegen.llvm.machine import Host


def test_the_remembered_host_is_llvms(tmp_path: Path) -> None:
    host.remember(tmp_path, "a", detect_host())
    assert host.recall(tmp_path, "a") == detect_host() == host.host()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "{}",
        '{"triple": "a", "cpu": "b"}',
        '{"triple": 1, "cpu": "b", "features": ""}',
    ],
)
def test_a_damaged_file_is_not_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert host.recall(tmp_path, "a") is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_text("in the way")
    host.remember(obstacle, "a", Host("t", "c", "+f"))
    assert obstacle.read_text() == "in the way"


def test_another_processor_has_another_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = []
    for flags in ("sse2 avx2", "sse2 avx2 amx_tile"):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(host, "CPUINFO", cpuinfo)
        collected.append(host.identity())
    assert None not in collected
    assert collected[0] != collected[1]


def test_the_clock_does_not_change_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = []
    for clock in ("1000.0", "3000.0"):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"processor\t: 0\ncpu MHz\t\t: {clock}\nflags\t\t: sse2\n\n")
        monkeypatch.setattr(host, "CPUINFO", cpuinfo)
        collected.append(host.identity())
    assert collected[0] == collected[1] is not None


def test_without_flags_there_is_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "missing")
    assert host.identity() is None


def test_a_cache_path_that_is_too_long_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "/tmp/" + "long/" * 2000)
    assert host.host.__wrapped__() == detect_host()


def test_files_of_killed_processes_are_swept(tmp_path: Path) -> None:
    host.remember(tmp_path, "a", Host("t", "c", "+f"))
    left = tmp_path / f".a.json.{'0' * 16}"
    left.write_text("half")
    os.utime(left, (1, 1))
    host.remember(tmp_path, "b", Host("t", "c", "+f"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]
