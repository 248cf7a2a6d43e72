"""Rows of CSV and Parquet files as samples: a column for each input, named as it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantglow.data.array_files import one_line
from quantglow.data.samples import LABELS, Located
from quantglow.errors import CalibrationError
from quantglow.extras import package
from quantglow.files import DAMAGED_CONTENT

ROWS = 256
"""Rows of a Parquet file that are read at a time."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """The rows of a file as samples of a model with inputs ``names``.

    The columns are the inputs.  If none is called so, and the model has one input, each row is a
    vector of all columns but that of labels, for this input.
    """

    path: Path
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[Located]:
        rows = csv_rows(self) if self.path.suffix.lower() == ".csv" else parquet_rows(self)
        for index, row in enumerate(rows):
            place = f"row {index} of {self.path.name!r}"
            yield Located(sample_of(row, self.names, place), place)

    def columns(self, known: Sequence[str]) -> list[str]:
        """The columns that samples are made of, and those of labels.  Raises
        ``CalibrationError``.
        """
        own = [name for name in self.names if name in known]
        if len(own) == len(self.names) or (known and not own and len(self.names) == 1):
            read = [c for c in known if c in LABELS or not own or c in own]
            if twice := [c for c in dict.fromkeys(read) if read.count(c) > 1]:
                raise CalibrationError(
                    f"{self.path.name!r} has more than one column {twice[0]!r}. Remedy: give each "
                    "column a name of its own."
                )
            return read
        missing = [name for name in self.names if name not in known]
        raise CalibrationError(
            f"{self.path.name!r} has no column for {missing}; its columns are {list(known)}. "
            "Remedy: name the columns as the model's inputs."
        )


def sample_of(row: Row, names: Sequence[str], place: str) -> Row:
    """The values of the inputs, and labels, of a row.  Raises ``CalibrationError``."""
    for column, value in row.items():
        if value is None:
            raise missing_value(column, place)
    if any(name in row for name in names):
        return row
    labels = {column: value for column, value in row.items() if column in LABELS}
    return {**labels, names[0]: [value for c, value in row.items() if c not in LABELS]}


def missing_value(column: str, place: str) -> CalibrationError:
    return CalibrationError(
        f"{place} has no value in column {column!r}. Remedy: fill it, or leave the row out."
    )


def csv_rows(table: Table) -> Iterator[Row]:
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
                yield {name: number_of(name, row[name], place) for name in columns}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        remedy = "write a line of names, then rows of numbers"
        raise unreadable(table.path, error, remedy) from error


def number_of(column: str, text: str | None, place: str) -> int | float:
    """The number of a cell.  Raises ``CalibrationError``."""
    if text is None or not text.strip():
        raise missing_value(column, place)
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


def parquet_rows(table: Table) -> Iterator[Row]:
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
        raise unreadable(table.path, error, "write it anew, as with pyarrow.parquet") from error


def unreadable(path: Path, error: Exception, remedy: str) -> CalibrationError:
    return CalibrationError(
        f"cannot read calibration data {str(path)!r}: {one_line(error)}. Remedy: {remedy}."
    )
