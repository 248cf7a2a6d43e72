"""Bundles on emulated AArch64 and RISC-V stay in their arena, weights, inputs and outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quantglow.runtime import bundles
from tests.support.bundled import built, interpreted, written
from tests.support.pinned import NAMES, feeds_of, hashes, pinned
from tools.cross_setup import PROCESSORS
from tools.other_processors import QEMU

pytestmark = pytest.mark.emulated

RUNNERS = {
    **{level: (level, "aarch64", cpu) for level, cpu in PROCESSORS.items()},
    **{place: (level, "riscv64", cpu) for place, (level, cpu) in QEMU.items()},
}
"""Place -> level, and QEMU's names of the processor."""


@pytest.mark.parametrize("place", RUNNERS)
@pytest.mark.parametrize("name", NAMES)
def test_arrays_may_lie_between_guard_pages(name: str, place: str, tmp_path: Path) -> None:
    level, family, processor = RUNNERS[place]
    compiler, emulator = f"{family}-linux-gnu-gcc", f"qemu-{family}"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"no {compiler} or {emulator}: `make cross-setup` installs them")
    graph = pinned(name)
    feeds = feeds_of(graph, hashes()[name][0])
    bundles.export_bundle(graph, tmp_path, "net", level, "bin", False, False, "object")
    program = built(tmp_path, compiler, "-static")
    for side in ("start", "end"):
        found = written(program, graph, feeds, side, runner=(emulator, "-cpu", processor))
        assert found == interpreted(graph, feeds), side
