"""Sentences of the repository begin with a subject: the rules are those of ``tools.prose``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.names import refused_names as faults
from tools.names import shared_class_names
from tools.prose import ROOT, files, offenders, refused_names


def test_all_folders_are_searched() -> None:
    actual = {path.relative_to(ROOT).parts[0] for path in files([ROOT])}
    assert actual >= {"README.md", "benchmarks", "datasets", "notebooks", "quantglow", "tests"}


def test_sentences_begin_with_a_subject() -> None:
    actual = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for path in files([ROOT])
        for line, sentence in offenders(path)
    ]
    assert actual == [], "\n".join(["python -m tools prose lists them all:", *actual])


def test_names_say_what_values_are() -> None:
    refused = [
        f"{path.relative_to(ROOT)}:{line}: {fault}" for path, line, fault in refused_names([ROOT])
    ]
    assert refused == [], "\n".join(["python -m tools prose lists them all:", *refused])


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("found = 1", 1),
        ("for made in x: pass", 1),
        ("[own for own in x]", 1),
        ("def wanted(taken, *rest): pass", 3),
        ("self.given = x", 1),
        ("class Colour: pass", 1),
        ("def f(): quantised = x.found", 1),
        ("graph = found.rest; f(given=1)", 0),
        ("specialisations = 1", 0),
    ],
)
def test_vague_and_british_names_are_refused(tmp_path: Path, code: str, count: int) -> None:
    (file := tmp_path / "code.py").write_text(code)
    assert len(list(faults(file))) == count


def test_a_class_name_of_two_files_is_refused(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.py", "other.py", "last.py")]
    for file, name in zip(files, ("Place", "Place", "Step"), strict=True):
        file.write_text(f"class {name}: pass")
    assert [path for path, _, _ in shared_class_names(files)] == files[:2]
