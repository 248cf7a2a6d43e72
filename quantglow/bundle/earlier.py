"""The earlier bundle of a name in a folder: the files that it wrote, as its manifest lists them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Earlier:
    """Files of an earlier bundle, with the hash that each had when it was written."""

    folder: Path
    hashes: Mapping[str, str]

    @staticmethod
    def of(folder: str | os.PathLike[str], name: str) -> Earlier:
        """The bundle ``NAME.json`` lists; one without files where there is none, or a damaged one.

        Names with folders are left out: the file may be anybody's.
        """
        path = Path(folder)
        try:
            listed = json.loads((path / f"{name}.json").read_text(encoding="utf-8"))["files"]
            found = {str(file): str(facts["sha256"]) for file, facts in listed.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found = {}
        return Earlier(path, {file: h for file, h in found.items() if Path(file).name == file})

    def is_edited(self, file: str) -> bool:
        """Whether a file is there, and not as the bundle wrote it."""
        known = self.hashes.get(file)
        return known is not None and self._hash_of(file) not in (None, known)

    def left_over(self, new: Mapping[str, bytes]) -> Iterator[Path]:
        """Files as it wrote them that a new bundle has not."""
        for file, known in self.hashes.items():
            if file not in new and self._hash_of(file) == known:
                yield self.folder / file

    def _hash_of(self, file: str) -> str | None:
        try:
            return hashlib.sha256((self.folder / file).read_bytes()).hexdigest()
        except (OSError, ValueError):  # it is not there, no file, or has no name
            return None
