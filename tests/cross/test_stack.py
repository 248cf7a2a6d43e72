"""The macros of a header state enough stack for every width of vector registers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quantglow.export.bundle.exporter import BundleOptions, export_bundle
from quantglow.ir.graph.graph import Graph
from quantglow.runtime.saved import saving
from tests.support.pinned import NAMES, pinned
from tools.integer_hashes import write
from tools.other_processors import HERE, QEMU, VECTORS

MAIN = Path(__file__).parents[1] / "support" / "stack_main.c"
NETWORKS = ("mnist", "ppocr_cls")
PLACE = QEMU["rv64gcv"]
WIDTHS = (128, 256, 512, 1024)
"""Bits of a vector register that QEMU emulates."""

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        not (shutil.which(PLACE.compiler) and shutil.which(PLACE.emulator)),
        reason=f"no {PLACE.compiler} or {PLACE.emulator}: `make cross-setup` installs them",
    ),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real networks, quantized and saved on this machine."""
    folder = tmp_path_factory.mktemp("networks")
    write(folder, NETWORKS)
    return folder


def graph_of(name: str, saved: Path) -> Graph:
    return pinned(name) if name in NAMES else saving.load(saved / f"{name}.qgm").graph


@pytest.mark.parametrize("name", [*NAMES, *NETWORKS])
def test_a_run_takes_no_more_stack_than_the_header_says(
    name: str, saved: Path, tmp_path: Path
) -> None:
    options = BundleOptions(name="net", target=PLACE.level)
    export_bundle(graph_of(name, saved), tmp_path, options)
    program = tmp_path / "stack"
    folders = [f"-I{folder}" for folder in (tmp_path, HERE)]
    command = [PLACE.compiler, "-O1", "-static", *folders, MAIN, tmp_path / "net.o", "-o", program]
    subprocess.run(command, check=True)
    for width in WIDTHS:
        ran = [PLACE.emulator, "-cpu", f"{VECTORS},vlen={width}", program]
        done = subprocess.run(ran, capture_output=True, text=True, check=True)
        selected, said, most = map(int, done.stdout.split())
        assert 0 < selected <= said <= most, width
