"""Flags from TOML files (``--config FILE``), and messages of the library in the words of a command.

::

    calibration_data = "samples.npz"     # --calibration-data samples.npz
    symmetric_weights = false            # --no-symmetric-weights
    ignored_scope = ["scores", "boxes"]  # --ignored-scope scores boxes

Names are those of flags, with either ``-`` or ``_``.  Flags of the command line come later, so they
win.

The library's errors name options as Python has them, ``input_shapes={'x': (…)}`` or
``code='use'``; flags are the same keywords, so one rule translates all of them.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantglow.support.errors import FileFormatError, OptionError
from quantglow.support.files import cause

FLAG = "--config"
MAX_NBYTES = 1 << 20

VALUE = r"""\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|'[^']*'|"[^"]*"|[\w.-]*\w"""
"""A value in Python's words."""

OPTION = r"(?<![\w.'\"/=-])([a-z][a-z0-9]*(?:_[a-z0-9]+)*)"
"""A name of Python that is not a part of another word, a text or a path."""

KEYWORD = re.compile(rf"{OPTION}(?:=({VALUE})?|\[('[^']*')\])(?![=(])")
"""``name=value``, ``name=`` without one, or an entry ``name['x']``."""

NAME = re.compile(rf"{OPTION}(?![\w(=\[.]\w|[\w(=\[/])")
"""A name by itself."""

SUBJECT = re.compile(r"[a-z0-9_]+(?=[ :])")
"""The option that a sentence about one begins with."""

ENTRY, SIZES = re.compile(r"'([^']*)': \(([^()]*)\)"), "D,D,…"
"""An entry of ``input_shapes``, and its sizes where they are not known."""


def with_config(words: Sequence[str], commands: dict[str, argparse.ArgumentParser]) -> list[str]:
    """The words of a command line, with the flags of its file in place of ``--config``.

    Raises ``FileFormatError`` for a file that is no TOML, and ``OptionError`` for entries that are
    no flags of the command.
    """
    command = next((word for word in words if word in commands), None)
    if command is None or not any(word.partition("=")[0] == FLAG for word in words):
        return list(words)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, action="append", default=[])
    place = list(words).index(command)
    parsed, remainder = parser.parse_known_args(list(words[place + 1 :]))
    config_words = [
        word for path in parsed.config for word in file_words(path, command, commands[command])
    ]
    return [*words[: place + 1], *_rest_behind(remainder, config_words)]


def _rest_behind(remainder: Sequence[str], words: Sequence[str]) -> list[str]:
    """Positional arguments, then the file's flags, then those that were typed.

    A flag with several values would take a positional argument behind it.
    """
    first = next((at for at, word in enumerate(remainder) if word.startswith("--")), len(remainder))
    return [*remainder[:first], *words, *remainder[first:]]


def file_words(path: str, command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The flags of a file."""
    for name, value in _entries(path).items():
        flag = f"--{name.replace('_', '-')}"
        action = parser._option_string_actions.get(flag)
        if action is None or flag == FLAG:
            raise OptionError(
                f"{path}: {command} has no flag {flag}. Remedy: `quantglow help {command}` lists "
                "its flags."
            )
        yield from _flag_words(flag, value, action, path)


def _entries(path: str) -> dict[str, Any]:
    """The entries of a TOML file."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_NBYTES + 1)
        if len(content) > MAX_NBYTES:
            raise ValueError(f"it is larger than {MAX_NBYTES} bytes")
        return tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"config: cannot read {path!r}: {cause(error) if isinstance(error, OSError) else error}"
            ". Remedy: a TOML file with flags as names."
        ) from error


def _flag_words(flag: str, value: Any, action: argparse.Action, path: str) -> list[str]:
    """The words of one flag, as they would be typed."""
    if isinstance(value, bool) and action.nargs == 0:
        return [flag] if value else [f"--no-{flag[2:]}"] if _has_negative(action) else []
    values = value if isinstance(value, list) else [value]
    if not values or any(isinstance(v, bool | dict | list) for v in values):
        raise OptionError(f"{path}: {flag} cannot be {value!r}. Remedy: a text, a number or a list")
    texts = [str(v) for v in values]
    if isinstance(action, argparse._AppendAction):
        return [word for text in texts for word in (flag, text)]
    return [f"{flag}={texts[0]}"] if len(texts) == 1 and action.nargs is None else [flag, *texts]


def _has_negative(action: argparse.Action) -> bool:
    """Whether a flag can be turned off."""
    return isinstance(action, argparse.BooleanOptionalAction)


def in_flags(
    text: str,
    command: str,
    parsers: Mapping[str, argparse.ArgumentParser],
    *,
    is_about_option: bool = False,
) -> str:
    """A message with the flags of ``command``, or else of the first command that has them;
    ``is_about_option``: it may begin with the name of one."""
    flags = command_flags(command, parsers)
    subject = SUBJECT.match(text) if is_about_option else None
    if subject and flags.get(subject[0], "").startswith("--"):
        text = flags[subject[0]] + text[subject.end() :]

    def keyword(match: re.Match[str]) -> str:
        name, value, entry = match.groups()
        if name == command:
            return name
        return _word(flags[name], value or entry or "") if name in flags else match[0]

    def bare(match: re.Match[str]) -> str:
        is_word = "_" not in match[1]  # "target" is one of English, too.
        return match[0] if is_word else flags.get(match[1], match[0])

    return NAME.sub(bare, KEYWORD.sub(keyword, text))


def command_flags(command: str, parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, str]:
    """The flag of each keyword, with its command if it is of another one."""
    flags: dict[str, str] = {}
    for name in sorted(parsers, key=lambda name: name != command):
        prefix = "" if name == command else f"quantglow {name} "
        for action in parsers[name]._actions:
            if action.option_strings:
                flags.setdefault(action.dest, prefix + action.option_strings[0])
    return flags


def _word(flag: str, value: str) -> str:
    """A flag and its value as words of a command line."""
    if value == "True":
        return flag
    if value == "False":
        return flag.replace("--", "--no-", 1)
    return f"{flag} {_shell_value(value)}".strip()


def _shell_value(value: str) -> str:
    """A value of Python as one or more words."""
    if value[:1] == "{":
        sizes = value.replace(", ", ",").replace("…", SIZES)
        return " ".join(map(":".join, ENTRY.findall(sizes))) or f"NAME:{SIZES}"
    items = value[1:-1].split(", ") if value[:1] in ("[", "(") else [value]
    return " ".join(item.strip("'\"") for item in items).replace("...", "…")
