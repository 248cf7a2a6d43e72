"""Models as files, for runtimes in child processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def on_disk(model: Any) -> Iterator[str]:
    """The absolute path of a model, which may be a path already (weights may lie beside it)."""
    if isinstance(model, str | os.PathLike):
        yield os.path.abspath(model)
        return
    content = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        yield str(path)
