"""Errors of commands name flags, not the keywords of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantglow.cli.flags import KEYWORD, command_flags, in_flags
from quantglow.cli.main import parsers

PACKAGE = Path(__file__).resolve().parents[3] / "quantglow"
PARSERS = parsers()

OF_PYTHON = {
    "backend": "every command compiles by LLVM",
    "max_batch": "queues are objects of Python",
}
"""Keywords in remedies that no command has, and why no command raises them."""


@pytest.mark.parametrize(
    ("text", "command", "shown"),
    [
        ("pass input_shapes={'x': (1, 3)}.", "compile", "pass --input-shapes x:1,3."),
        ("input_shapes={'x': (…)}", "bench", "--input-shapes x:D,D,…"),
        ("input_shapes={name: shape}.", "quantize", "--input-shapes NAME:D,D,…."),
        ("input_shapes['x'] is (1,)", "compile", "--input-shapes x is (1,)"),
        ("a larger max_minutes, or", "tune", "a larger --max-minutes, or"),
        ("load it with code='use', which", "run", "load it with --code use, which"),
        ("save with include_code for", "run", "save with quantglow quantize --include-code for"),
        ("leave weights= out", "quantize", "leave --weights out"),
        ("num_threads=2, or", "bench", "--num-threads 2, or"),
        ("quantize_input=True", "bundle", "--quantize-input"),
        ("verify=False calibrates", "quantize", "--no-verify calibrates"),
        (
            "the node 'max_minutes' and a/input_shapes",
            "tune",
            "the node 'max_minutes' and a/input_shapes",
        ),
        ("the target of the model", "bundle", "the target of the model"),
    ],
)
def test_keywords_become_flags(text: str, command: str, shown: str) -> None:
    assert in_flags(text, command, PARSERS) == shown


def test_the_option_that_a_sentence_begins_with_becomes_a_flag() -> None:
    shown = in_flags("seconds must be positive", "bench", PARSERS, is_about_option=True)
    assert shown == "--seconds must be positive"
    assert in_flags("seconds pass", "bench", PARSERS) == "seconds pass"


def keywords(command: str) -> dict[str, str]:
    """The keywords of one command and their flags."""
    flags = command_flags(command, {command: PARSERS[command]})
    return {name: flag for name, flag in flags.items() if name != "help"}


@pytest.mark.parametrize("command", PARSERS)
def test_every_keyword_of_a_command_becomes_its_flag(command: str) -> None:
    for name, flag in keywords(command).items():
        assert in_flags(f"Remedy: {name}='a'.", command, PARSERS) == f"Remedy: {flag} a."


def remedies() -> Iterator[str]:
    """Every remedy of the package; a mark for what is inserted."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [p.value if isinstance(p, ast.Constant) else "0" for p in parts]
            if "Remedy: " in (text := "".join(t for t in texts if isinstance(t, str))):
                yield text.partition("Remedy: ")[2]


@pytest.mark.slow
def test_every_keyword_of_a_remedy_is_a_flag() -> None:
    flags = {name for command in PARSERS for name in keywords(command)}
    named = {match[1] for text in remedies() for match in KEYWORD.finditer(text)}
    assert named - flags == OF_PYTHON.keys()


@pytest.mark.slow
def test_no_remedy_calls_a_function_with_an_option() -> None:
    assert [text for text in remedies() if re.search(r"\w\([^)]*\b\w+=\S", text)] == []
