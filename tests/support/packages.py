"""Packages that use onnxruntime, each in an environment of its own on top of that of the tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented import PACKAGES, ROOT
from tests.support.plug_in import CPU, PACKAGE, PROVIDER
from tools.downloads.wheels import UNREACHABLE

PAGE = "docs/how_to/onnxruntime.md"

START = """
import json, sys
import numpy as np
import onnxruntime
import onnxruntime_ep_quantglow
onnxruntime_ep_quantglow.get_library_path = lambda: sys.argv[1]
"""

COUNT = """
from quantglow import ep
print(json.dumps([result, ep.counts()["native"] + ep.counts()["python"]]))
"""


@dataclass(frozen=True)
class Recipe:
    """A package in a few lines of the page.

    title         of the lines, the package's name
    requirements  pip's, the package first
    before        makes the names that the lines take as given, in Python
    result        an expression of what the lines make, in types of JSON
    prepare       writes files into the folder where it runs
    """

    title: str
    requirements: tuple[str, ...]
    before: str
    result: str
    prepare: Callable[[Path], None] = lambda folder: None

    @property
    def lines(self) -> str:
        """The block of the page."""
        text = (ROOT / PAGE).read_text(encoding="utf-8")
        pattern = rf"^{re.escape(self.title)}:\n\n```{PACKAGES}\n(.*?)^```$"
        block = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        assert block is not None, f"{PAGE} has no lines for {self.title}"
        return block[1]

    @property
    def plain_lines(self) -> str:
        """The same without the plug-in, on the CPU's provider."""
        lines = self.lines.splitlines()
        plain = [line for line in lines if not line.startswith("onnxruntime_ep_quantglow.")]
        return "\n".join(plain).replace(PROVIDER, CPU)

    def outcomes(self, python: Path, library: Path, folder: Path) -> tuple[Any, Any, int]:
        """The results on the CPU's provider and on quantglow's, and the calls of the latter."""
        self.prepare(folder)
        plain, none = self._run(python, self.plain_lines, library, folder)
        result, calls = self._run(python, self.lines, library, folder)
        assert not none
        return plain, result, calls

    def _run(self, python: Path, lines: str, library: Path, folder: Path) -> tuple[Any, int]:
        script = f"{START}\n{self.before}\n{lines}\nresult = {self.result}\n{COUNT}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE, ROOT)))}
        done = subprocess.run(
            [python, "-c", script, str(library)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        result, calls = json.loads(done.stdout.splitlines()[-1])
        return result, calls


def environment(folder: Path, *requirements: str) -> Path:
    """The Python of a new environment that has packages beside those of this one.

    The test is skipped where pip reaches no package index.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = [path for path in sys.path if path.endswith("site-packages")]
    below = folder / "lib" / version / "site-packages" / "below.pth"
    below.write_text("\n".join(paths))
    command = [str(python), "-m", "pip", "install", "--quiet", "--retries=1", *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"{requirements[0]} cannot be downloaded: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return python
