"""Command lines of packages whose commands are modules."""

from __future__ import annotations

import sys

import pytest

from benchmarks.support import commands


def test_a_command_gets_the_first_paragraph_of_its_module_as_help() -> None:
    first, _, rest = commands.docstring("tools.operators").partition("\n\n")
    shown = commands.parser("prog", "", {"operators": "tools.operators"}, []).format_help()
    assert " ".join(first.split()) in " ".join(shown.split())
    assert rest.split()[:5] and " ".join(rest.split()[:5]) not in " ".join(shown.split())


def test_only_the_chosen_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tools.conformance", "tools.operators"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = {"conformance": "tools.conformance", "operators": "tools.operators"}
    commands.parser("prog", "", modules, ["conformance"])
    assert "tools.operators" not in sys.modules


def test_wrong_arguments_exit_with_code_2() -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.run("prog", "", {"operators": "tools.operators"}, ["nothing"])
