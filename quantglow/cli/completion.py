"""``quantglow completion``: a script that completes commands and flags in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import Console

from quantglow.support.extras import package

SHELLS = ("bash", "zsh", "fish")
FILES = ("FILE", "FOLDER", "DIR")
"""Metavariables of flags that take names of files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace, console: Console, top: argparse.ArgumentParser) -> None:
    """Print the script for the parser of the command line.  Raises ``OptionError``."""
    console.file.write(script(top, options.shell) + "\n")


def script(top: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell.  Raises ``OptionError`` without shtab."""
    shtab = package("shtab", "completion", "a script of completions")
    for action in _file_actions(top):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(top, shell=shell))


def _file_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and its commands that name files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _file_actions(command)
        elif action.metavar in FILES or action.dest in ("model", "recipe", "text"):
            yield action
