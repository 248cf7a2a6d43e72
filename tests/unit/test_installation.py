"""Files of a wheel: all that the package reads when it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ("mnist_cnn.onnx", "mnist_test.npz", "ppocr_cls.onnx", "ocr_direction.npz")
"""Files of ``datasets/`` that ``quantglow demo`` reads."""


@pytest.mark.slow
def test_a_wheel_has_every_file_that_is_read(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"  # pip writes beside what it builds
    for name in ("quantglow", "datasets"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(copy)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    package = (p for p in (ROOT / "quantglow").rglob("*") if p.is_file())
    read = {p.relative_to(ROOT).as_posix() for p in package if p.suffix not in (".md", ".pyc")}
    assert read | {f"quantglow/_data/{name}" for name in DATA} <= held
