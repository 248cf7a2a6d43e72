"""Fetch dagre, the layout library of pages, into ``report/vendor`` (npm is needed).

python -m tools.page_library          # replaces the files
python -m tools.page_library --check  # fails if they differ from the published ones
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quantglow.report.webpage import VENDOR

PACKAGE = "@dagrejs/dagre@3.1.3"
FILES = {"package/dist/dagre.min.js": "dagre.min.js", "package/LICENSE": "dagre.LICENSE"}
"""Member of the archive -> file."""
MAP = b"//# sourceMappingURL="
"""Beginning of the line that names a file which is not vendored."""


def published() -> Iterator[tuple[Path, bytes]]:
    """Each file, and what it should hold."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as members:
            for member, name in FILES.items():
                actual = members.extractfile(member)
                assert actual is not None, f"{PACKAGE} has no {member}"
                yield VENDOR / name, without_map(actual.read())


def without_map(content: bytes) -> bytes:
    """A script without the line that names its map: pages load nothing."""
    return b"".join(line for line in content.splitlines(True) if not line.startswith(MAP))


def main() -> str | None:
    """Write or check the files.  Names those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    differing = []
    for path, content in published():
        if not path.exists() or path.read_bytes() != content:
            differing.append(path.name)
            if not check:
                path.write_bytes(content)
    return f"these differ from {PACKAGE}: {differing}" if check and differing else None


if __name__ == "__main__":
    sys.exit(main())
