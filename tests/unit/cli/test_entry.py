"""The process of the command line, before it knows its command."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.combinations import mark_slow

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


COMMAND = """
import sys
{setting}
sys.argv = ["quantglow", *{arguments}]
from {entry} import {function} as main
sys.exit(main())
"""


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=False, **{**streams, **options})


def entry() -> tuple[str, str]:
    """Module and function that the ``quantglow`` command calls."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["quantglow"].split(":")
    return module, function


@pytest.mark.parametrize("module", ["numpy", "onnx", "llvmlite", "quantglow.api"])
def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(module: str) -> None:
    place, function = entry()
    actual = python(INTERRUPTED_AT.format(module=module, entry=place, function=function))
    assert (actual.returncode, actual.stdout, actual.stderr) == (130, "", "")


@pytest.mark.slow
def test_the_command_runs_to_its_end_otherwise() -> None:
    place, function = entry()
    actual = python(INTERRUPTED_AT.format(module="none", entry=place, function=function))
    assert (actual.returncode, actual.stderr) == (0, "")
    assert actual.stdout.startswith("quantglow ")


def quantglow(
    *arguments: str, setting: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    place, function = entry()
    code = COMMAND.format(setting=setting, arguments=arguments, entry=place, function=function)
    return python(code, **options)


INSPECT = ("inspect", "datasets/mnist_cnn.onnx", "--stage", "optimized")


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_one_message() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        output = quantglow(*INSPECT, stdout=full)
    message = "quantglow: cannot write to stdout: No space left on device\n"
    assert (output.returncode, output.stderr) == (1, message)


@pytest.mark.slow
def test_nobody_needs_to_read_stdout() -> None:
    output = quantglow(*INSPECT, setting="sys.stdout = None")
    assert (output.returncode, output.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("stream", mark_slow(["stdin", "stdout", "stderr"], {"stdout"}))
def test_a_closed_stream_is_no_traceback(stream: str) -> None:
    closed = {"stdin": 0, "stdout": 1, "stderr": 2}[stream]
    setting = f"import os; os.close({closed}); sys.{stream} = None"
    for words, code in ((INSPECT, 0), (("opt",), 1), (("inspect", "none.onnx"), 1)):
        output = quantglow(*words, setting=setting, stdin=subprocess.DEVNULL)
        assert output.returncode == code
        assert "Traceback" not in output.stderr
        assert "quantglow: " not in output.stdout


@pytest.mark.slow
def test_characters_that_stdout_cannot_encode_are_replaced() -> None:
    output = quantglow("run", "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (output.returncode, output.stderr) == (0, "")
    assert "NAME:D,D,?" in output.stdout


@pytest.mark.slow
def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "quantglow", "--version"]
    results = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (results.returncode, results.stderr) == (0, "")
