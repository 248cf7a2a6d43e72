"""The reader of a path: a file of arrays, a table, or a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from quantglow.data import array_files, images
from quantglow.data.tables import Table
from quantglow.errors import CalibrationError
from quantglow.files import cause

TABLES = (".csv", ".parquet")

READERS: dict[str, Callable[[Path, tuple[str, ...]], Iterable[Any]]] = {
    ".csv": Table,
    ".npy": lambda path, names: [array_files.one_array(path)],
    ".parquet": Table,
}
"""Readers by suffix; a file with any other suffix is one of named arrays."""


def samples_at(path: str | os.PathLike[str], names: Sequence[str]) -> Iterable[Any]:
    """The samples of a file or folder, for a model with inputs ``names``.

    Raises ``CalibrationError``.
    """
    if not os.fspath(path):
        raise CalibrationError("the path of the data is empty. Remedy: name a file or folder.")
    place = Path(path)
    if os.path.isdir(place):
        return samples_of_folder(place)
    if (suffix := place.suffix.lower()) in READERS:
        return READERS[suffix](place, tuple(names))
    return [array_files.named_arrays(path)]


def is_streamed(path: str | os.PathLike[str]) -> bool:
    """Whether the samples of a path come one by one, and know their places."""
    place = Path(path)
    return place.suffix.lower() in TABLES or os.path.isdir(place)


def samples_of_folder(folder: Path) -> Iterable[Any]:
    """The array files of a folder.  Raises ``CalibrationError`` for one of images."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise CalibrationError(
            f"cannot read the folder {str(folder)!r}: {cause(error)}. "
            "Remedy: give one that you may read."
        ) from error
    files = tuple(entry for entry in entries if entry.suffix in array_files.SUFFIXES)
    if files:
        return array_files.ArrayFolder(files)
    if any(entry.is_dir() or entry.suffix.lower() in images.SUFFIXES for entry in entries):
        raise CalibrationError(
            f"{str(folder)!r} is no folder of .npy or .npz files; how its images become inputs is "
            "not known. Remedy: quantglow.data.ImageFolder(folder, preprocess), or --preprocess."
        )
    raise CalibrationError(
        f"{str(folder)!r} has no .npy or .npz files. Remedy: write one for each sample."
    )
