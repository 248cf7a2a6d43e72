"""A bundle with all levels of AArch64 chooses the best one of each emulated processor."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import quantglow as qg
from tests.support.small_network import SHAPE, small_model, small_samples

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PROCESSORS = {"cortex-a57": 2, "cortex-a76": 1, "max": 0}
"""QEMU's name of a processor -> number of its level."""
MAIN = """
#include "net.h"
int main(void) { return net_level(); }
"""

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason=f"no {COMPILER} or {EMULATOR}: `make cross-setup` installs them",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of a bundle, and a program that returns the level."""
    folder = tmp_path_factory.mktemp("levels")
    compiled = qg.quantize_and_compile(small_model(), small_samples(), progress=False)
    assert isinstance(compiled, qg.CompiledModel)
    compiled.export_bundle(folder, name="net", target="aarch64:all")
    (folder / "level.c").write_text(MAIN)
    outputs = qg.interpret(compiled.graph, {"x": np.zeros(SHAPE, np.float32)})
    scores = " ".join(f"{value:.9g}" for value in outputs[0].ravel())
    (folder / "expected.txt").write_text(f"net_run: 0\noutput 0: {scores}\n")
    for source, program in (("main.c", "example"), ("level.c", "level")):
        command = [COMPILER, "-static", source, *sorted(folder.glob("*.o")), "-o", program]
        subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("processor", PROCESSORS)
def test_each_processor_takes_its_best_level(folder: Path, processor: str) -> None:
    ran = subprocess.run([EMULATOR, "-cpu", processor, folder / "level"])
    assert ran.returncode == PROCESSORS[processor]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_each_processor_computes_the_same_integers(folder: Path, processor: str) -> None:
    command = [EMULATOR, "-cpu", processor, folder / "example"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith((folder / "expected.txt").read_text())
