"""Sentences of the repository begin with a subject: the rules are those of ``tools.prose``."""

from __future__ import annotations

from tools.prose import ROOT, files, offenders

UNCONVERTED = ("tests",)
"""Folders and files that still break the rules.  This list shrinks; nothing is added to it."""


def is_converted(path: str) -> bool:
    return not any(path == entry or path.startswith(f"{entry}/") for entry in UNCONVERTED)


def test_sentences_begin_with_a_subject() -> None:
    found = [
        f"{name}:{line}: {sentence}"
        for path in files([ROOT])
        if is_converted(name := path.relative_to(ROOT).as_posix())
        for line, sentence in offenders(path)
    ]
    assert found == [], "\n".join(["python -m tools prose lists them all:", *found])


def test_every_unconverted_entry_exists() -> None:
    assert [entry for entry in UNCONVERTED if not (ROOT / entry).exists()] == []
