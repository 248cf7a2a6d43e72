"""Bundles on emulated AArch64 and RISC-V stay in their arena, weights, inputs and outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quantglow.export.bundle import exporter as bundles
from tests.support.bundled import built, interpreted, written
from tests.support.pinned import NAMES, feeds_of, hashes, pinned
from tools.other_processors import QEMU

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("place", QEMU)
@pytest.mark.parametrize("name", NAMES)
def test_arrays_may_lie_between_guard_pages(name: str, place: str, tmp_path: Path) -> None:
    actual = QEMU[place]
    compiler, emulator = actual.compiler, actual.emulator
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"no {compiler} or {emulator}: `make cross-setup` installs them")
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])
    options = bundles.BundleOptions(name="net", target=actual.level, weights="bin")
    bundles.export_bundle(graph, tmp_path, options)
    program = built(tmp_path, compiler, "-static")
    for side in ("start", "end"):
        runner = (emulator, "-cpu", actual.processor)
        results = written(program, graph, feeds, side, runner=runner)
        assert results == interpreted(graph, feeds), side
