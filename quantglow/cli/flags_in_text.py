"""Messages of the library in the words of a command: flags in place of Python's keywords.

The library's errors name options as Python has them, ``input_shapes={'x': (…)}`` or
``code='use'``; flags are the same keywords, so one rule translates all of them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

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


def in_flags(
    text: str,
    command: str,
    parsers: Mapping[str, argparse.ArgumentParser],
    *,
    is_about_option: bool = False,
) -> str:
    """A message with the flags of ``command``, or else of the first command that has them;
    ``is_about_option``: it may begin with the name of one."""
    flags = flags_of(command, parsers)
    subject = SUBJECT.match(text) if is_about_option else None
    if subject and flags.get(subject[0], "").startswith("--"):
        text = flags[subject[0]] + text[subject.end() :]

    def keyword(match: re.Match[str]) -> str:
        name, value, entry = match.groups()
        if name == command:
            return name
        return worded(flags[name], value or entry or "") if name in flags else match[0]

    def bare(match: re.Match[str]) -> str:
        is_word = "_" not in match[1]  # "target" is one of English, too.
        return match[0] if is_word else flags.get(match[1], match[0])

    return NAME.sub(bare, KEYWORD.sub(keyword, text))


def flags_of(command: str, parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, str]:
    """The flag of each keyword, with its command if it is of another one."""
    flags: dict[str, str] = {}
    for name in sorted(parsers, key=lambda name: name != command):
        prefix = "" if name == command else f"quantglow {name} "
        for action in parsers[name]._actions:
            if action.option_strings:
                flags.setdefault(action.dest, prefix + action.option_strings[0])
    return flags


def worded(flag: str, value: str) -> str:
    """A flag and its value as words of a command line."""
    if value == "True":
        return flag
    if value == "False":
        return flag.replace("--", "--no-", 1)
    return f"{flag} {shell_value(value)}".strip()


def shell_value(value: str) -> str:
    """A value of Python as one or more words."""
    if value[:1] == "{":
        sizes = value.replace(", ", ",").replace("…", SIZES)
        return " ".join(map(":".join, ENTRY.findall(sizes))) or f"NAME:{SIZES}"
    items = value[1:-1].split(", ") if value[:1] in ("[", "(") else [value]
    return " ".join(item.strip("'\"") for item in items).replace("...", "…")
