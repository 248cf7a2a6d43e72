"""Files that are in a bundle's folder before it is written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

SIGNATURE = "SHA-256 of the lines above, by which quantglow knows that nobody edited them:"


def signed(text: str, comment: str) -> str:
    """A text with its hash in a last line, a ``comment`` of its language."""
    return f"{text}{comment.format(f'{SIGNATURE} {_hash(text.encode())}')}\n"


def is_edited(path: Path, comment: str) -> bool:
    """Whether a file is not as ``signed`` gave it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    last = text.rfind(comment.split("{}")[0] + SIGNATURE)
    return last < 0 or signed(text[:last], comment) != text


def left_over(
    folder: str | os.PathLike[str], name: str, new: Mapping[str, bytes]
) -> Iterator[Path]:
    """Files of the earlier bundle of a name that the new one has not, as they were written.

    ``NAME.json`` lists them; one that is damaged lists none, and names with folders are left out:
    the file may be anybody's.
    """
    path = Path(folder)
    try:
        listed = json.loads(_regular(path / f"{name}.json"))["files"]
        found = {str(file): str(facts["sha256"]) for file, facts in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    for file, known in found.items():
        try:
            is_own = Path(file).name == file and _hash(_regular(path / file)) == known
        except (OSError, ValueError):  # it is not there, no file, or has no name
            continue
        if is_own and file not in new:
            yield path / file


def _regular(path: Path) -> bytes:
    """The bytes of a file.  Raises ``OSError`` for a pipe, which may never end, too."""
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    return path.read_bytes()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
