"""``python -m PACKAGE COMMAND``: a module for each command, imported when it is chosen.

A command's module has ``add_arguments(parser)`` and ``run(options) -> exit code``.  The first
paragraph of its docstring is its help.
"""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def parser(
    prog: str, description: str, modules: Mapping[str, str], arguments: Sequence[str]
) -> argparse.ArgumentParser:
    """All commands of ``modules`` (name to dotted module); the options of the chosen one."""
    top = argparse.ArgumentParser(prog=prog, description=description)
    commands = top.add_subparsers(dest="command", required=True)
    for name, module in modules.items():
        text = docstring(module)
        command = commands.add_parser(
            name,
            help=" ".join(text.partition("\n\n")[0].split()),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in arguments[:1]:
            importlib.import_module(module).add_arguments(command)
    return top


def docstring(module: str) -> str:
    """The docstring of a module of this repository, read without importing it."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def run(prog: str, description: str, modules: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name; its exit code, 2 for wrong arguments."""
    options = parser(prog, description, modules, arguments).parse_args(arguments)
    code: int = importlib.import_module(modules[options.command]).run(options)
    return code
