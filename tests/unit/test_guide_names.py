"""Names in the guides are names of the code: what is renamed there is renamed here."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tools.prose import ROOT

GUIDES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "quantglow").rglob("README.md"))]
PACKAGE = [*(ROOT / "quantglow").rglob("*.py")]
OTHERS = [path for room in ("tests", "tools") for path in (ROOT / room).rglob("*.py")]

SUFFIXES = {"c", "css", "h", "js", "json", "ll", "md", "mjs", "py", "svg", "toml", "txt", "yml"}
"""Suffixes of files, which follow a dot, too."""

FOREIGN = {
    "NAME_run": "a function of generated C",
    "alloc": "an instruction in the text of programs",
    "cpuid": "an instruction of x86-64",
    "dealloc": "an instruction in the text of programs",
    "simd128": "a feature of WebAssembly",
    "vmlava": "an instruction of Cortex-M",
}
"""Names that stand alone in guides, and are no names of this code."""

SPAN = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"([A-Za-z_]\w+)\(")
"""A call; functions of one letter are those of formulas."""
ATTRIBUTE = re.compile(r"(?<=[\w\])])\.([A-Za-z_]\w*)")
NAME = re.compile(r"[A-Za-z_]\w*")
DEFINITION = re.compile(r"^(?: *(?:def|class) |(?=[A-Z]))(\w+)", re.MULTILINE)
"""A function, a class or a constant: enough of files that guides seldom mention."""


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Constants of a module, and attributes of a class."""
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        if isinstance(statement, ast.AnnAssign):
            targets = (statement.target,)
        names = (node for target in targets for node in ast.walk(target))
        yield from (node.id for node in names if isinstance(node, ast.Name))


def defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Functions, classes and attributes of objects, imports and constants."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[-1]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from assigned(node.body)


def mentioned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Arguments of functions, and strings."""
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def names() -> tuple[frozenset[str], frozenset[str]]:
    """Everything that is defined; the same with arguments and strings."""
    nodes = [n for path in PACKAGE for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    others = (name for path in OTHERS for name in DEFINITION.findall(path.read_text("utf-8")))
    modules = (part for p in PACKAGE + OTHERS for part in p.relative_to(ROOT).with_suffix("").parts)
    library = (*dir(builtins), *dir(np), *dir(np.ndarray))
    definitions = frozenset(defined(nodes)).union(others, modules, library)
    return definitions, definitions.union(mentioned(nodes), FOREIGN)


def unknown_in_span(span: str) -> list[str]:
    definitions, words = names()
    if NAME.fullmatch(span):
        return [] if span in words else [span]
    attributes = set(ATTRIBUTE.findall(span)) - SUFFIXES
    return sorted({*CALL.findall(span), *attributes} - definitions)


def unknown_in_block(code: str) -> list[str]:
    """Names that an example of Python reads and nothing defines."""
    tree, (definitions, _) = ast.parse(textwrap.dedent(code)), names()
    nodes = list(ast.walk(tree))
    local = {*defined(nodes), *(node.arg for node in nodes if isinstance(node, ast.arg))}
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return sorted(read - local - definitions)


def unknown_names(text: str) -> list[str]:
    blocks = [code for language, code in BLOCK.findall(text) if language == "python"]
    spans = SPAN.findall(BLOCK.sub("", text))
    unknown = [name for span in spans for name in unknown_in_span(span)]
    return unknown + [name for code in blocks for name in unknown_in_block(code)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_guide_names_what_the_code_defines(guide: Path) -> None:
    assert unknown_names(guide.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`decline(node, reason)`", []),
        ("`return declined(node, reason)`", ["declined"]),
        ("`Node.permute`", []),
        ("`Node.permuted`", ["permuted"]),
        ('`call.derived("axes")`', ["derived"]),
        ("`permuted`", ["permuted"]),
        ("`f(s x, s y)`", []),
        ("`codegen/llvm/kernel.py`", []),
        ("```python\ndef rule(node: Node) -> Node:\n    return permuted(node.uses)\n```\n",
         ["permuted"]),
        ("```\npermuted(x)\n```\n", []),
    ],
)  # fmt: skip
def test_names_that_are_gone_are_seen(text: str, unknown: list[str]) -> None:
    assert unknown_names(text) == unknown


def test_foreign_names_are_those_that_guides_mention() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)
    assert FOREIGN.keys() <= set(SPAN.findall(text))
