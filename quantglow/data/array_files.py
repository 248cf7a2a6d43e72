"""``.npy`` and ``.npz`` files, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.data.samples import Located, Unnamed
from quantglow.errors import CalibrationError
from quantglow.files import DAMAGE, cause, read_arrays
from quantglow.foreign_types import Array

SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True)
class ArrayFolder:
    """The files of a folder in the order of their names: a sample of one or several batches each.

    An ``.npz`` file has an array for each input, an ``.npy`` file that of the only input.
    """

    files: tuple[Path, ...]

    def __iter__(self) -> Iterator[Any]:
        for file in self.files:
            yield located(file)


def located(file: Path) -> Any:
    """The arrays of a file, which knows its place; those of an ``.npy`` file have no name."""
    if file.suffix == ".npy":
        return Unnamed(one_array(file), repr(file.name))
    return Located(named_arrays(file), repr(file.name))


def named_arrays(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """The arrays of an ``.npz`` file.  Raises ``CalibrationError``."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"cannot read calibration data {os.fspath(path)!r}: {cause(error)}. "
            "Remedy: write it with numpy.savez, one array for each input."
        ) from error


def one_array(path: str | os.PathLike[str]) -> Array:
    """The array of an ``.npy`` file, whose pages are read on use.  Raises ``CalibrationError``."""
    try:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, *DAMAGE) as error:
        raise CalibrationError(
            f"cannot read calibration data {os.fspath(path)!r}: {one_line(error)}. "
            "Remedy: write it with numpy.save, an array of numbers."
        ) from error
    return found


def one_line(error: Exception) -> str:
    """The cause in one line without a full stop."""
    return " ".join(cause(error).split()).rstrip(".")
