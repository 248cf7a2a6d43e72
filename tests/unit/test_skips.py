"""``--no-skips`` fails tests that lack a tool, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import *\n"
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="REASON")
def test_marked(): ...

def test_skips_itself():
    pytest.skip("REASON")

@pytest.mark.xfail(reason="known")
def test_fails_as_expected():
    raise AssertionError
"""
WHOLE_FILE = """
import pytest

pytest.importorskip("no_such_module")
"""


def summary(folder: Path, tests: str, *options: str) -> str:
    """The last line of pytest on a file of tests."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return ran.stdout.splitlines()[-1]


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("reason", "options", "counted"),
    [
        ("no gcc", (), "2 skipped, 1 xfailed"),
        ("no gcc", ("--no-skips",), "1 failed, 1 xfailed, 1 error"),
        ("this processor has no avx2", ("--no-skips",), "2 skipped, 1 xfailed"),
    ],
)
def test_a_test_without_its_tool_fails(
    tmp_path: Path, reason: str, options: tuple[str, ...], counted: str
) -> None:
    assert counted in summary(tmp_path, TESTS.replace("REASON", reason), *options)


@pytest.mark.slow
def test_a_file_without_its_module_fails(tmp_path: Path) -> None:
    assert "1 skipped" in summary(tmp_path, WHOLE_FILE)
    assert "1 error" in summary(tmp_path, WHOLE_FILE, "--no-skips")
