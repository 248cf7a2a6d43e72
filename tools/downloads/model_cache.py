"""Cache of generated and downloaded models, written atomically."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def models_dir() -> Path:
    """The folder ``$QUANTGLOW_CACHE_DIR/models``, by default ``~/.cache/quantglow/models``."""
    root = os.environ.get("QUANTGLOW_CACHE_DIR") or Path.home() / ".cache" / "quantglow"
    folder = Path(root) / "models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cached file ``name``; if it is missing, ``build`` writes it to a temporary path first.

    The rename at the end is atomic, so concurrent processes at worst build the same file twice.
    """
    path = models_dir() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            build(Path(folder) / name)
            os.replace(Path(folder) / name, path)
    return path


def content_key(path: Path, *settings: object) -> str:
    """Sixteen hex digits that change with the file's content and with each setting."""
    digest = hashlib.sha256(path.read_bytes())
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:16]
