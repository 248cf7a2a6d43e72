"""Bundles on emulated AArch64 and RISC-V stay in their arena, weights, inputs and outputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quantglow.export.bundle import exporter as bundles
from tests.support.bundled import built, interpreted, written
from tests.support.pinned import NAMES, feeds_of, hashes, pinned
from tools.other_processors import QEMU

pytestmark = pytest.mark.emulated


def parameters() -> Iterator[Any]:
    """Every graph on every processor; slow is each second one, others for the next processor."""
    for number, place in enumerate(QEMU):
        for k, name in enumerate(NAMES):
            yield pytest.param(name, place, marks=[pytest.mark.slow] if (number + k) % 2 else [])


@pytest.mark.parametrize(("name", "place"), [*parameters()])
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
