"""Lists of parameters in docstrings as Markdown's lists of definitions.

A docstring has one line for each parameter: its name, two or more spaces, what it means; further
lines are indented.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ENTRY = re.compile(r"^(?P<names>[\w*]+(?:, [\w*]+)*) {2,}(?P<text>\S.*)$")
FURTHER = re.compile(r"^ {4,}(?P<text>\S.*)$")


def with_definitions(docstring: str) -> str:
    """The docstring with definitions in place of lists of parameters."""
    return "\n".join(_lines(docstring.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    is_list, is_fresh = False, True
    for line in lines:
        entry, further = ENTRY.match(line), FURTHER.match(line)
        if entry and (is_list or is_fresh):
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            yield from ("", names, f":   {entry['text']}")
            is_list = True
        elif further and is_list:
            yield f"    {further['text']}"
        else:
            is_list = False
            yield line
        is_fresh = not line.strip()
