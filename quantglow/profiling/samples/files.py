"""Samples with their places and labels, from array files and from tables.

Array files are ``.npy`` and ``.npz``, or folders of them.  Rows of CSV and Parquet files are
samples: a column for each input, named as it.  ``as_array`` takes the tensors of other libraries.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantglow.interpreter import RecordedFeeds
from quantglow.support.arrays import Array, array_of_tensor, is_torch_tensor
from quantglow.support.errors import CalibrationError
from quantglow.support.extras import package
from quantglow.support.files import DAMAGE, DAMAGED_CONTENT, cause, read_arrays

Feeds = dict[str, Array]

LABELS = ("labels", "label")
"""Names under which a sample has its labels, beside its inputs."""

SUFFIXES = (".npy", ".npz")

ROWS = 256
"""Rows of a Parquet file that are read at a time."""

Row = Mapping[str, Any]


class Located(RecordedFeeds):
    """Feeds, and their ``place`` in the user's data: "sample 3", or "row 2 of 'rows.csv'"."""

    def __init__(self, feeds: Mapping[str, Any], place: str) -> None:
        super().__init__(feeds)
        self.place = place


@dataclass(frozen=True)
class Unnamed:
    """A sample without names, its ``place``, and its labels."""

    values: Any
    place: str
    labels: Any = None


def as_array(value: Any) -> Array:
    """An array of what has ``__array__`` or ``numpy()``, as tensors do, or of nested lists.

    Raises ``ValueError`` and ``TypeError``, such as for ragged lists.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("it is masked, and hidden values would count; give its filled(number)")
    if isinstance(value, np.ndarray):
        return value
    if is_torch_tensor(value):
        return array_of_tensor(value)
    if hasattr(value, "numpy") and not hasattr(value, "__array__"):
        value = value.numpy()
    return np.asarray(value)


def without_labels(sample: Any, names: Sequence[str]) -> tuple[Any, Any]:
    """A sample without its labels, and these; None if it has none.

    Labels are an entry ``LABELS`` of a dict that is no input, or integers behind the arrays of all
    inputs in a tuple or list, as a DataLoader gives them.
    """
    if isinstance(sample, Unnamed):
        return sample, sample.labels
    if isinstance(sample, Mapping):
        key = next((n for n in LABELS if n in sample and n not in names), None)
        if key is None:
            return sample, None
        inputs = {name: value for name, value in sample.items() if name != key}
        unlabeled = Located(inputs, sample.place) if isinstance(sample, Located) else inputs
        return unlabeled, sample[key]
    is_longer = isinstance(sample, tuple | list) and len(sample) == len(names) + 1
    return (sample[:-1], sample[-1]) if is_longer and are_labels(sample[-1]) else (sample, None)


def are_labels(value: Any) -> bool:
    """Whether a value is one integer, or a vector of them."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return array.dtype.kind in "iu" and array.ndim <= 1


@dataclass(frozen=True)
class ArrayFolder:
    """The files of a folder in the order of their names: a sample of one or several batches each.

    An ``.npz`` file has an array for each input, an ``.npy`` file that of the only input.
    """

    files: tuple[Path, ...]

    def __iter__(self) -> Iterator[Any]:
        for file in self.files:
            yield _locate(file)


def _locate(file: Path) -> Any:
    """The arrays of a file, which knows its place; those of an ``.npy`` file have no name."""
    if file.suffix == ".npy":
        return Unnamed(one_array(file), repr(file.name))
    return Located(open_arrays(file), repr(file.name))


def open_arrays(path: str | os.PathLike[str]) -> Mapping[str, Array]:
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
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, *DAMAGE) as error:
        raise CalibrationError(
            f"cannot read calibration data {os.fspath(path)!r}: {one_line(error)}. "
            "Remedy: write it with numpy.save, an array of numbers."
        ) from error
    return array


def one_line(error: Exception) -> str:
    """The cause in one line without a full stop."""
    return " ".join(cause(error).split()).rstrip(".")


@dataclass(frozen=True)
class SampleTable:
    """The rows of a file as samples of a model with inputs ``names``.

    The columns are the inputs.  If none is called so, and the model has one input, each row is a
    vector of all columns but that of labels, for this input.
    """

    path: Path
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[Located]:
        rows = _csv_rows(self) if self.path.suffix.lower() == ".csv" else _parquet_rows(self)
        for index, row in enumerate(rows):
            place = f"row {index} of {self.path.name!r}"
            yield Located(_parse_sample(row, self.names, place), place)

    def columns(self, header: Sequence[str]) -> list[str]:
        """The columns that samples are made of, and those of labels.  Raises
        ``CalibrationError``.
        """
        inputs = [name for name in self.names if name in header]
        if len(inputs) == len(self.names) or (header and not inputs and len(self.names) == 1):
            read = [c for c in header if c in LABELS or not inputs or c in inputs]
            if twice := [c for c in dict.fromkeys(read) if read.count(c) > 1]:
                raise CalibrationError(
                    f"{self.path.name!r} has more than one column {twice[0]!r}. Remedy: give each "
                    "column a name of its own."
                )
            return read
        missing = [name for name in self.names if name not in header]
        raise CalibrationError(
            f"{self.path.name!r} has no column for {missing}; its columns are {list(header)}. "
            "Remedy: name the columns as the model's inputs."
        )


def _parse_sample(row: Row, names: Sequence[str], place: str) -> Row:
    """The values of the inputs, and labels, of a row.  Raises ``CalibrationError``."""
    for column, value in row.items():
        if value is None:
            raise _missing_value(column, place)
    if any(name in row for name in names):
        return row
    labels = {column: value for column, value in row.items() if column in LABELS}
    return {**labels, names[0]: [value for c, value in row.items() if c not in LABELS]}


def _missing_value(column: str, place: str) -> CalibrationError:
    return CalibrationError(
        f"{place} has no value in column {column!r}. Remedy: fill it, or leave the row out."
    )


def _csv_rows(table: SampleTable) -> Iterator[Row]:
    """The rows of a CSV file with a line of names, as numbers.  Raises ``CalibrationError``."""
    try:
        with table.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            columns = table.columns(reader.fieldnames or ())
            for index, row in enumerate(reader):
                place = f"row {index} of {table.path.name!r}"
                if None in row:
                    raise CalibrationError(
                        f"{place} has more cells than there are columns. "
                        "Remedy: a name for each column in the first line."
                    )
                yield {name: _parse_number(name, row[name], place) for name in columns}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        remedy = "write a line of names, then rows of numbers"
        raise _unreadable(table.path, error, remedy) from error


def _parse_number(column: str, text: str | None, place: str) -> int | float:
    """The number of a cell.  Raises ``CalibrationError``."""
    if text is None or not text.strip():
        raise _missing_value(column, place)
    for kind in (int, float):
        try:
            if "_" not in text:  # Python reads 1_0 as 10
                return kind(text)
        except ValueError:
            continue
    raise CalibrationError(
        f"{place} has {text[:40]!r} in column {column!r}, which is no number. "
        "Remedy: leave the column out, or encode it as for the model."
    )


def _parquet_rows(table: SampleTable) -> Iterator[Row]:
    """The rows of a Parquet file, some at a time.  Raises ``CalibrationError``."""
    name = repr(table.path.name)
    parquet = package("pyarrow.parquet", "parquet", name, CalibrationError)
    arrow = package("pyarrow", "parquet", name, CalibrationError)
    try:
        with parquet.ParquetFile(table.path) as file:
            columns = table.columns(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=ROWS, columns=columns):
                yield from batch.to_pylist()
    except CalibrationError:
        raise
    except (OSError, *DAMAGED_CONTENT, arrow.ArrowException) as error:
        raise _unreadable(table.path, error, "write it anew, as with pyarrow.parquet") from error


def _unreadable(path: Path, error: Exception, remedy: str) -> CalibrationError:
    return CalibrationError(
        f"cannot read calibration data {str(path)!r}: {one_line(error)}. Remedy: {remedy}."
    )
