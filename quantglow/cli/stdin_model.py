"""``-`` for a model: it comes from stdin."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantglow.cli.files import SAVED
from quantglow.errors import OptionError

STDIN = "-"
ARCHIVE = b"PK"
"""First bytes of a saved model, which is an archive; no ONNX model begins so."""


@contextmanager
def from_stdin() -> Iterator[str]:
    """A file with the model on stdin, named ``stdin``.  Raises ``OptionError``."""
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("no model is piped to stdin. Remedy: pipe one, or name a file.")
    content = sys.stdin.buffer.read()
    if not content:
        raise OptionError("no model came from stdin. Remedy: look at the command before the pipe.")
    with tempfile.TemporaryDirectory(prefix="quantglow-") as folder:
        path = Path(folder) / f"stdin{SAVED if content.startswith(ARCHIVE) else '.onnx'}"
        path.write_bytes(content)
        yield str(path)
