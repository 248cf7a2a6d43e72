"""Records of tuned kernels: read as written, on the machine that measured them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quantglow.codegen.llvm.cache import ENVIRONMENT
from quantglow.codegen.llvm.isa.costs import KernelChoice
from quantglow.codegen.llvm.machine import machine_identity
from quantglow.codegen.llvm.targets import resolve
from quantglow.tuning import records
from quantglow.tuning.records import Record, hints, keep_records, read_records, tune_target

HERE = machine_identity() or ""
CHOICE, OTHER = (
    KernelChoice("plain", (1, 4, 2), True, 4, "even"),
    KernelChoice("matrix", None, False),
)
RECORD = Record("a", HERE, CHOICE, (0.5, 0.75), (1.0, 1.5), 8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    return tmp_path / "tuning"


def test_records_are_read_as_they_were_written() -> None:
    every = [RECORD, Record("b", HERE, None), replace(RECORD, choice=OTHER)]
    keep_records(every[:1])
    keep_records(every[1:])
    assert read_records() == every


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"v": 2}',
        RECORD.line().replace(b'"plain"', b"7"),
        RECORD.line().replace(b"[1, 4, 2]", b"[1, 4]"),
        RECORD.line().replace(b"[1, 4, 2]", b"[1, 4, 1e99]"),
        RECORD.line().replace(b"[1, 4, 2]", b'"abc"'),
        RECORD.line().replace(b"[0.5, 0.75]", b"null"),
        RECORD.line().replace(b'"even"', b"[]"),
        RECORD.line().replace(b'"tried": 8', b'"tried": 1e999'),
        RECORD.line()[:50],
    ],
    ids=lambda line: line[:20],
)
def test_a_damaged_line_is_not_used(folder: Path, line: bytes) -> None:
    keep_records([RECORD])
    with (folder / records.NAME).open("ab") as file:
        file.write(line.rstrip(b"\n") + b"\n")
    keep_records([RECORD])
    assert read_records() == [RECORD, RECORD]


ENTRIES = list(json.loads(RECORD.line()))
VALUES = ["1e999", "-1e999", "NaN", "1" * 5000, '"\\ud800"', "[[]]", "{}", "true", "null", "-1"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_of_any_kind_cost_no_more_than_their_line(folder: Path, entry: str) -> None:
    for value in VALUES:
        content = json.loads(RECORD.line()) | {entry: "PLACE"}
        line = json.dumps(content).replace('"PLACE"', value).encode() + b"\n"
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / records.NAME).unlink(missing_ok=True)
        keep_records([RECORD])
        with (folder / records.NAME).open("ab") as file:
            file.write(line)
        actual = read_records()
        assert actual[0] == RECORD
        tune_target(resolve("native"), actual)


def test_a_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_records([RECORD])
    monkeypatch.setattr(records, "MOST_NBYTES", 10)
    assert read_records() == []


def test_a_file_that_others_may_write_is_not_read(folder: Path) -> None:
    keep_records([RECORD])
    (folder / records.NAME).chmod(0o666)
    assert read_records() == []


def test_without_a_cache_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "")
    assert not keep_records([RECORD])
    assert read_records() == []


def test_the_newest_record_of_this_machine_counts() -> None:
    newer = replace(RECORD, choice=OTHER)
    foreign = replace(RECORD, host="another", choice=None)
    target = tune_target(resolve("native"), [RECORD, newer, foreign])
    assert target.choices.by_task == {"a": OTHER}


def test_a_default_that_stays_needs_no_choice() -> None:
    assert not tune_target(resolve("native"), [replace(RECORD, choice=None)]).choices


def test_a_machine_without_a_name_uses_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "machine_identity", lambda: None)
    ours = replace(RECORD, host=records.this_host())
    assert tune_target(resolve("native"), [ours]).choices.by_task == {"a": CHOICE}


def test_records_of_other_machines_are_hints() -> None:
    foreign = replace(RECORD, host="another")
    assert hints([foreign, RECORD, foreign, replace(foreign, choice=None)], HERE) == {"a": [CHOICE]}
