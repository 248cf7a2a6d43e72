"""The paths of macOS and Windows, taken on Linux: what they lack is taken away first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantglow.codegen.llvm.isa.waiting import polling
from quantglow.support import private_folder
from quantglow.support.private_folder import PrivateFolder
from quantglow.support.processes import isolation, system
from quantglow.support.processes.isolation import (
    ChildDied,
    ChildTimeout,
    RaisedInChild,
    call_isolated,
)
from tests.support.combinations import mark_slow

WITHOUT = """
import os, sys, mmap, signal, subprocess, tempfile, asyncio, socket, numpy, scipy, onnx, threading
import logging.handlers, multiprocessing.pool, concurrent.futures, platform, ctypes, onnxruntime
import llvmlite.binding
for name in ("register_at_fork", "sched_getaffinity", "sched_setaffinity", "geteuid"):
    delattr(os, name)
for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "O_ASYNC"):
    delattr(os, name)
for name in ("MADV_DONTNEED", "MADV_HUGEPAGE", "MAP_PRIVATE", "MAP_ANONYMOUS"):
    delattr(mmap, name)
for name in ("SIGALRM", "SIGIO", "setitimer"):
    delattr(signal, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
os.supports_dir_fd = set()
sys.platform = "{platform}"
# Another package's code for Windows:
import threadpoolctl
threadpoolctl.ThreadpoolController._load_libraries = lambda self: None
import quantglow as qg
from tests.support.small_network import small_model, small_samples
samples = small_samples()
compiled = qg.quantize_and_compile(small_model(), samples, num_threads=2, progress=False)
wanted = qg.interpret(compiled.graph, {{"x": samples[0]}})
for found, one in zip(compiled.run(None, {{"x": samples[0]}}), wanted, strict=True):
    numpy.testing.assert_array_equal(found, one)
compiled.save("m.qgm")
numpy.testing.assert_array_equal(qg.load("m.qgm")(samples[0])[0], wanted[0])
compiled.export_bundle("bundle", name="net")
print("ran")
"""
"""A program on Linux without what only Linux, or only POSIX, has."""


@pytest.mark.slow
@pytest.mark.parametrize("platform", mark_slow(["darwin", "win32"], {"win32"}))
def test_models_are_calibrated_compiled_and_saved(tmp_path: Path, platform: str) -> None:
    environment = {
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
        "QUANTGLOW_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(platform=platform)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr[-3000:]
    assert list((tmp_path / "cache" / "kernels").iterdir())


def double(arrays: list[np.ndarray], **facts: object) -> list[np.ndarray]:
    """For children."""
    if facts.get("fail"):
        raise ValueError("no")
    if facts.get("hang"):
        while True:
            pass
    if facts.get("end"):
        raise SystemExit(3)
    return [2 * array for array in arrays]


@pytest.fixture(params=[True, False], ids=["descriptors", "paths"])
def _channel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "HAS_DESCRIPTORS", request.param)


@pytest.mark.slow_variants
@pytest.mark.usefixtures("_channel")
def test_children_return_raise_end_and_are_ended() -> None:
    place = f"{__name__}:double"
    (actual,) = call_isolated(place, [np.arange(3)], seconds=60)
    np.testing.assert_array_equal(actual, [0, 2, 4])
    with pytest.raises(RaisedInChild, match="no"):
        call_isolated(place, [], {"fail": True}, seconds=60)
    with pytest.raises(ChildDied, match="exit code 3"):
        call_isolated(place, [], {"end": True}, seconds=60)
    with pytest.raises(ChildTimeout):
        call_isolated(place, [], {"hang": True}, seconds=2)


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_private_folders_keep_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    monkeypatch.setattr(private_folder, "HAS_DESCRIPTORS", has_descriptors)
    folder = PrivateFolder(tmp_path / "own")
    folder.write("a.o", b"code")
    folder.touch("a.o")
    assert folder.read("a.o")[0] == b"code"
    assert [name for _, _, name in folder.files(".o")] == ["a.o"]
    folder.sweep()
    folder.remove("a.o")
    assert folder.files(".o") == []


CACHES = {"linux": ".cache", "darwin": "Library/Caches", "win32": "AppData/Local"}


@pytest.mark.parametrize("platform", CACHES)
def test_caches_lie_where_the_system_has_them(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert system.user_caches() == Path.home() / CACHES[platform]


def test_each_system_has_a_way_to_wait() -> None:
    windows, macos = polling("x86_64-pc-windows-msvc"), polling("arm64-apple-macosx11.0.0")
    assert "@Sleep(" in windows.sleep and "QueryPerformanceCounter" in windows.declarations
    assert "clock_gettime(i32 6," in macos.declarations
