"""Folders, tables and arrays on disk as samples."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import quantglow as qg
from quantglow.ir.graph.signature import Port, Signature
from quantglow.ir.types import DType
from quantglow.profiling.samples import files as samples
from quantglow.profiling.samples.feeds import read_feeds, samples_at
from quantglow.support.arrays import Array

ONE = Signature((Port("x", DType.F32, ("n", 3)),), ())
TWO = Signature((Port("a", DType.F32, ("n", 1)), Port("b", DType.I64, ("n", 2))), ())


def read(data: Any, signature: Signature = ONE) -> list[dict[str, Any]]:
    return [{n: a.tolist() for n, a in feeds.items()} for feeds in read_feeds(data, signature)]


def rows(count: int = 3) -> Array:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


EXPECTED = [{"x": [row.tolist()]} for row in rows()]


def test_an_array_file_is_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows())
    assert read(tmp_path / "x.npy") == EXPECTED


def test_folders_of_arrays_are_read_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", rows()[1])
    np.savez(tmp_path / "0.npz", x=rows()[:1], labels=np.array([1]))
    np.savez(tmp_path / "2.npz", x=rows()[2:])
    (tmp_path / "notes.txt").touch()
    assert read(tmp_path) == EXPECTED


def test_files_of_a_folder_are_read_when_their_samples_are_needed(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", rows())
    (tmp_path / "1.npy").write_bytes(b"damaged")
    feeds = read_feeds(tmp_path, ONE)
    assert [next(feeds)["x"].tolist() for _ in range(3)] == [e["x"] for e in EXPECTED]
    with pytest.raises(qg.CalibrationError, match=r"1\.npy'.*Remedy: write it with numpy\.save"):
        next(feeds)


def test_rows_without_names_of_inputs_are_vectors(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("p,q,label,r\n0,1,7,2\n3,4.0,7,5\n6,7,7,8e0\n")
    assert read(path) == EXPECTED


def test_a_mark_of_utf8_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x\n2\n", encoding="utf-8-sig")
    assert read(path, Signature((Port("x", DType.F32, ("n",)),), ())) == [{"x": [2]}]


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(qg.CalibrationError, match="path of the data is empty"):
        read("")


def test_columns_are_inputs(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,x,label\nfirst,2,1\nsecond,3,0\n")
    assert read(path, Signature((Port("x", DType.F32, ("n",)),), ())) == [{"x": [2]}, {"x": [3]}]
    with pytest.raises(qg.CalibrationError, match=r"row 0 of 'rows\.csv' does not fit input 'x'"):
        read(path, Signature((Port("x", DType.F32, (1, 1, 1)),), ()))


def table(path: Path, count: int = 3) -> Path:
    columns = {"a": [[0.5]] * count, "b": [[i, 2] for i in range(count)], "other": ["t"] * count}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def test_rows_of_parquet_files_have_lists(tmp_path: Path) -> None:
    actual = read(table(tmp_path / "rows.parquet", 600), TWO)
    assert actual == [{"a": [[0.5]], "b": [[i, 2]]} for i in range(600)]


def test_labels_of_files_reach_the_validation(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("p,q,label,r\n0,1,2,2\n")
    ((sample, label),) = [samples.without_labels(item, ["x"]) for item in samples_at(path, ["x"])]
    assert (sample, label) == ({"x": [0, 1, 2]}, 2)


WRONG_TABLES = {
    "": "has no column",
    "p,q,r\n1,2": "row 0 of 'rows.csv' has no value in column 'r'.*Remedy",
    "p,q,r\n1,2,\n": "no value in column 'r'",
    "p,q,r\n1,2,3,4\n": "row 0 of 'rows.csv' has more cells than there are columns.*Remedy",
    "p,q,r\n1,2,3\n1,b,3\n": "row 1 of 'rows.csv' has 'b' in column 'q'.*Remedy",
    "p,q,r\n1,2,nan\n": r"row 0 of 'rows.csv' has 1 NaN",
    "p,q,p\n1,2,3\n": "'rows.csv' has more than one column 'p'.*Remedy",
    "p,q,r\n1,2,1_0\n": "row 0 of 'rows.csv' has '1_0' in column 'r'",
    "p,q\n1,2\n": "row 0 of 'rows.csv' does not fit input 'x'.*Remedy",
    'p,q,r\n1,"2': "cannot read.*rows.csv.*Remedy",
    "\xff,q,r\n": "cannot read.*rows.csv.*Remedy",
}


@pytest.mark.parametrize("text", WRONG_TABLES, ids=repr)
def test_damaged_tables_name_file_row_and_cause(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(qg.CalibrationError, match=WRONG_TABLES[text]):
        read(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,c\n1,2\n")
    with pytest.raises(qg.CalibrationError, match=r"no column for \['b'\]; its columns are"):
        read(path, TWO)


def test_times_that_python_does_not_have_are_one_message(tmp_path: Path) -> None:
    times = pyarrow.array([2**60], pyarrow.timestamp("ms"))
    pyarrow.parquet.write_table(pyarrow.table({"x": times}), tmp_path / "rows.parquet")
    with pytest.raises(qg.CalibrationError, match=r"rows\.parquet"):
        read(tmp_path / "rows.parquet")


@pytest.mark.parametrize("place", [0, 50, -9])
def test_damaged_parquet_files_are_named(tmp_path: Path, place: int) -> None:
    path = table(tmp_path / "rows.parquet")
    content = bytearray(path.read_bytes())
    content[place : place + 8 if place >= 0 else None] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(qg.CalibrationError, match=r"rows\.parquet"):
        read(path, TWO)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(qg.CalibrationError, match=r"pip install 'quantglow\[parquet\]'"):
        read(table(tmp_path / "rows.parquet"), TWO)


@pytest.mark.parametrize("names", [[], ["a.txt"]])
def test_folders_without_arrays_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(qg.CalibrationError, match=r"no \.npy or \.npz files.*Remedy"):
        read(tmp_path)


def test_folders_of_images_need_their_preprocessing(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(qg.CalibrationError, match=r"ImageFolder\(folder, preprocess\)"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_damaged_array_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(qg.CalibrationError, match=r"x\.npy'.*Remedy"):
        read(tmp_path / "x.npy")


def test_objects_in_array_files_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([csv.Error()], object), allow_pickle=True)
    with pytest.raises(qg.CalibrationError, match="Remedy"):
        read(tmp_path / "x.npy")
