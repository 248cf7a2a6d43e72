"""``--layer PATTERN``: the lines of a graph or a program that are about some layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from quantglow.errors import OptionError

NAMES = re.compile(r"^'([^']+)':|%([^\[\]{},:= ]+(?::[^\[\]{},:= ]+)*)|name='([^']+)'")
"""Names in a line: of the node that it makes, of buffers, and of an instruction."""

NUMBERS = re.compile(r"\(([^(),]+, [^(),]+), (?:[^(),]+, ){6,}[^(),]+\)")
"""A tuple of more than eight numbers, such as the scales of channels."""

SUGGESTIONS = 3


def lines_about(text: str, pattern: str) -> str:
    """The lines about layers whose names fit a shell pattern, long tuples shortened.

    Constants and helpers of a layer are named ``layer:what`` and belong to it.  Raises
    ``OptionError`` if no name fits.
    """
    lines = text.splitlines()
    found = [line for line in lines if any(fits(name, pattern) for name in names_in(line))]
    if not found:
        raise OptionError(no_layer(pattern, [n for line in lines for n in names_in(line)]))
    return "\n".join(map(shortened, found))


def names_in(line: str) -> list[str]:
    """The names of layers and buffers that a line is about."""
    return [next(filter(None, groups)) for groups in NAMES.findall(line)]


def fits(name: str, pattern: str) -> bool:
    """Whether a name fits, or that of the layer which it belongs to."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}:*")


def shortened(line: str) -> str:
    """The line with the first two numbers of long tuples, and how many there are."""

    def cut(found: re.Match[str]) -> str:
        return f"({found[1]}, … {found[0].count(',') + 1} in all)"

    return NUMBERS.sub(cut, line)


def no_layer(pattern: str, known: Sequence[str]) -> str:
    """The message for a pattern that fits nothing, with the nearest names."""
    near = get_close_matches(pattern, sorted(set(known)), SUGGESTIONS, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "'*' fits any part of a name."
    return f"no layer fits {pattern!r} at this stage; {hint}"
