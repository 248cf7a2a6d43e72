"""The example of a bundle: CMake builds it, and it prints the interpreter's values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from tests.support.bundled import each_compiler
from tests.support.small_network import SHAPE, small_model, small_samples

STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
PLACEMENTS = ("object", "c", "bin")
SHOWN = 8


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


def printed(compiled: Any) -> list[str]:
    """The lines that the example prints."""
    outputs = qg.interpret(compiled.graph, {"x": np.zeros(SHAPE, np.float32)})
    values = [" ".join(f"{v:.9g}" for v in y.ravel()[:SHOWN]) for y in outputs]
    return ["net_run: 0", *(f"output {index}: {line}" for index, line in enumerate(values))]


@pytest.mark.slow_variants
@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_cmake_builds_a_program_that_runs(compiled: Any, tmp_path: Path, placement: str) -> None:
    compiled.export_bundle(tmp_path, name="net", weights=placement)
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    ran = subprocess.run(
        ["build/net_example"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == printed(compiled)


@pytest.mark.slow_variants
@each_compiler
@pytest.mark.parametrize("system", ["-fhosted", "-ffreestanding"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_example_is_strict_c99(
    compiled: Any, tmp_path: Path, placement: str, system: str, compiler: str
) -> None:
    compiled.export_bundle(tmp_path, name="net", weights=placement)
    sources = sorted(tmp_path.glob("*.c"))
    ran = subprocess.run([compiler, *STRICT, system, "-c", *sources], cwd=tmp_path)
    assert ran.returncode == 0
