"""Writing files whole or not at all, and reading arrays."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ZIP, NPY = b"PK", b"\x93NUMPY"
"""How files begin."""


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside ``target`` that becomes it when the block ends well.

    If the block raises, the temporary file vanishes and ``target`` stays as it was.
    """
    path = Path(target)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file.  Raises ``OSError``, or ``ValueError`` for what is none."""
    try:
        with open(path, "rb") as file:
            begin = file.read(len(NPY))
            if begin.startswith(NPY):
                raise ValueError("it holds one array without a name, as numpy.save writes it")
            if not begin.startswith(ZIP):
                raise ValueError("it is no .npz file" if begin else "it is empty")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: np.asarray(archive[name]) for name in archive.files}
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"it is damaged: {error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
