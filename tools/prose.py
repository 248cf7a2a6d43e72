"""Sentences that open without a subject, and names that say too little (``tools.names``):
``python -m tools prose [PATH ...]`` lists them.

Checked are docstrings and comments of Python files, names of tests, and the sentences of Markdown
files and notebooks.  A sentence must not begin with Of, What, Those or Who, a docstring or comment
neither with Where, Whose or Which.  Questions, headings, tables and code are left alone.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import names

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("build", "dist", "results", "fuzz-findings")
SUFFIXES = (".py", ".md", ".ipynb", ".toml")
SENTENCE = re.compile(r"[(*_ ]*(of|what|those|who)\b", re.IGNORECASE)
OPENER = re.compile(r"[(*_ ]*(of|what|those|who|whom|where|whose|which)\b", re.IGNORECASE)
BANNED_WORD = re.compile(r"so[-_ ]manieth", re.IGNORECASE)
BAD_NAME = re.compile(r"^test_(of|what|those|who)_|so_manieth")


@dataclass(frozen=True)
class Text:
    """A docstring, comment or paragraph, and the line where it begins."""

    line: int
    text: str
    is_first: bool = False
    """It opens a docstring or comment."""


def files(paths: Sequence[Path]) -> list[Path]:
    """Files with prose below some paths, without generated ones."""
    actual = {f for p in paths for f in (p.rglob("*") if p.is_dir() else [p])}
    return sorted(f for f in actual if f.suffix in SUFFIXES and not is_generated(f))


def is_generated(path: Path) -> bool:
    """Whether a path of the repository lies in a hidden folder, or in one of generated files."""
    parts = path.relative_to(ROOT).parts
    return any(part[0] == "." or part in GENERATED or part.endswith(".egg-info") for part in parts)


def offenders(path: Path) -> Iterator[tuple[int, str]]:
    """Line and beginning of each sentence of a file that breaks a rule."""
    for text in texts(path):
        for line, sentence in sentences(text):
            pattern = OPENER if text.is_first and line == text.line else SENTENCE
            opens = pattern.match(sentence) and not sentence.endswith("?")
            if opens or BANNED_WORD.search(sentence):
                yield line, sentence[:70]


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(content, 1)
    elif path.suffix == ".ipynb":
        for cell in json.loads(content)["cells"]:
            if cell["cell_type"] == "markdown":
                yield from paragraphs("".join(cell["source"]), 1)
    else:
        yield from python_texts(path, content) if path.suffix == ".py" else toml_comments(content)


def python_texts(path: Path, content: str) -> Iterator[Text]:
    """Comments and docstrings of a Python file."""
    if "#" in content:  # Tokenizing takes most of the time.
        with path.open("rb") as file:
            yield from comments(file)
    yield from docstrings(names.parse(path))


def paragraphs(content: str, first: int, is_docstring: bool = False) -> Iterator[Text]:
    """Paragraphs and list items, without code blocks, headings and tables."""
    block: list[str] = []
    start, is_code = first, False
    for number, line in enumerate([*content.splitlines(), ""], first):
        plain = line.strip()
        is_code ^= plain.startswith("```")
        is_item = plain.startswith(("- ", "* ")) or re.match(r"\d+\. ", plain)
        if is_code or not plain or is_item or plain.startswith(("#", "|", "```", "<")):
            if block:
                yield Text(start, " \n".join(block), is_docstring and start == first)
            block, start = [], number
        if not is_code and plain and not plain.startswith(("#", "|", "```", "<")):
            start = start if block else number
            block.append(plain)


def docstrings(tree: ast.Module) -> Iterator[Text]:
    """Strings that stand alone: docstrings, also of constants; and the names of tests."""
    for node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from paragraphs(node.value.value, node.lineno, is_docstring=True)
        elif isinstance(node, ast.FunctionDef) and BAD_NAME.search(node.name):
            yield Text(node.lineno, node.name.removeprefix("test_").replace("_", " "))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node; expressions, most of a tree, are not walked."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(tree, field, ()):
            yield statement
            yield from statements(statement)


def comments(file: object) -> Iterator[Text]:
    """Comments of a Python file; consecutive lines are one."""
    block: list[str] = []
    start = 0
    for token in tokenize.tokenize(file.readline):  # type: ignore[attr-defined]
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != start + len(block):
            yield Text(start, " \n".join(block), is_first=True)
            block = []
        start = start if block else token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield Text(start, " \n".join(block), is_first=True)


def toml_comments(content: str) -> Iterator[Text]:
    """Comments of a TOML file, one for each line."""
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith("# "):
            yield Text(number, line[2:], is_first=False)


def sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Line and words of each sentence."""
    position = 0
    for sentence in re.split(r"(?<=[.!?])[ \n]+(?=[^a-z])", text.text):
        position = text.text.index(sentence, position)
        words = " ".join(sentence.split())
        yield text.line + text.text[:position].count("\n"), words.lstrip("-*# ")


def refused_names(paths: Sequence[Path]) -> Iterator[tuple[Path, int, str]]:
    """File, line and fault of each name in code that breaks a rule of ``tools.names``."""
    code = [path for path in files(paths) if path.suffix == ".py" and is_code(path)]
    for path in code:
        yield from ((path, *fault) for fault in names.refused_names(path))
    yield from names.shared_class_names([path for path in code if is_code(path, ("quantglow",))])


def is_code(path: Path, folders: Sequence[str] = names.CODE) -> bool:
    """Whether a file of the repository is in one of some folders."""
    return path.relative_to(ROOT).parts[0] in folders


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="*", type=Path, help="default: the whole repository")


def run(options: argparse.Namespace) -> int:
    """Print ``file:line: sentence`` or name for each offender; 1 if there is one."""
    chosen = [path.resolve() for path in options.paths] or [ROOT]
    refused = [(path, *where) for path in files(chosen) for where in offenders(path)]
    refused += refused_names(chosen)
    for path, line, fault in refused:
        print(f"{path.relative_to(ROOT)}:{line}: {fault}")
    return int(bool(refused))
