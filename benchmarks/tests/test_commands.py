"""Command lines of packages whose commands are modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.support import commands


def test_a_command_gets_the_first_paragraph_of_its_module_as_help() -> None:
    first, _, remaining = commands.docstring("tools.operators").partition("\n\n")
    shown = commands.parser("prog", "", {"operators": "tools.operators"}, []).format_help()
    assert " ".join(first.split()) in " ".join(shown.split())
    assert remaining.split()[:5] and " ".join(remaining.split()[:5]) not in " ".join(shown.split())


def test_only_the_chosen_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tools.conformance", "tools.operators"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = {"conformance": "tools.conformance", "operators": "tools.operators"}
    commands.parser("prog", "", modules, ["conformance"])
    assert "tools.operators" not in sys.modules


def test_wrong_arguments_exit_with_code_2() -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.run("prog", "", {"operators": "tools.operators"}, ["nothing"])


def test_a_package_that_is_missing_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "needing.py").write_text('"""Needs much."""\nimport no_such_package\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        commands.run("python -m x", "text", {"needing": "needing"}, ["needing"])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "No module named 'no_such_package', which needing needs. Remedy: pip install" in shown
