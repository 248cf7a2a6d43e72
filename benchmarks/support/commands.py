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
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]

REMEDY = (
    "pip install -e '.[bench,dev]'; benchmarks/README.md and tools/README.md name what single "
    "commands need beyond that"
)


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
            imported(module, top).add_arguments(command)
    return top


def imported(module: str, asked: argparse.ArgumentParser) -> ModuleType:
    """The module of a command; a package that it lacks is an error of the command line."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        asked.error(f"{error}, which {module} needs. Remedy: {REMEDY}")


def docstring(module: str) -> str:
    """The docstring of a module of this repository, read without importing it."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def run(prog: str, description: str, modules: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name; its exit code, 2 for wrong arguments."""
    top = parser(prog, description, modules, arguments)
    options = top.parse_args(arguments)
    code: int = imported(modules[options.command], top).run(options)
    return code
