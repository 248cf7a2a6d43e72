"""Sentences of the repository begin with a subject: the rules are those of ``tools.prose``."""

from __future__ import annotations

from tools.prose import ROOT, files, offenders


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
