"""The process of the command line, before it knows what to do."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

INTERRUPTED_AT = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["quantglow", "--version"]
from {entry} import {function} as main
sys.exit(main())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def entry() -> tuple[str, str]:
    """Module and function that the ``quantglow`` command calls."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["quantglow"].split(":")
    return module, function


@pytest.mark.parametrize("module", ["numpy", "onnx", "llvmlite", "quantglow.driver"])
def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(module: str) -> None:
    place, function = entry()
    found = python(INTERRUPTED_AT.format(module=module, entry=place, function=function))
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_the_command_runs_to_its_end_otherwise() -> None:
    place, function = entry()
    found = python(INTERRUPTED_AT.format(module="none", entry=place, function=function))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("quantglow ")
