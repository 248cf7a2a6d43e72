"""The docs' tables of options, from their declarations: docs/reference/options.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from quantglow.api.options import CalibratedModel, CompileOptions, DataOptions
from quantglow.api.pipeline.request import CheckOptions, QuantizationArguments
from quantglow.quantization.options import QuantizationConfig
from quantglow.support.options import Declaration, declarations

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "options.md"

HEAD = """# Options

Every option of `quantize_and_compile` is a keyword of Python and, where a command line has such
values, a flag of the same name: `subset_size` is `--subset-size`. `python -m tools options` writes
this page from the declarations, as docstrings and `quantglow help quantize` are made of them.
"""

GROUPS: dict[str, tuple[type[Any], str]] = {
    "Quantize": (QuantizationConfig, "the fields of `QuantizationConfig`, and `model_type`"),
    "Data": (DataOptions, "what the model takes, and is calibrated on"),
    "Check": (CheckOptions, "what is measured, and the accuracy that is kept"),
    "Compile": (CompileOptions, "how programs are compiled and run; also for `compile` and `load`"),
}
"""Groups of options, and what a heading says of them."""

KINDS = {bool: "True, False", int: "an integer", float: "a number"}


def page() -> str:
    """The text of the page."""
    return "".join([HEAD, *map("".join, map(section, GROUPS))])


def section(group: str) -> Iterator[str]:
    """The heading and the table of a group."""
    kind, about = GROUPS[group]
    defaults = {each.name: each.default for each in fields(QuantizationArguments)}
    yield f"\n## {group}: {about}\n\n"
    yield "| option | values | default | meaning |\n| --- | --- | --- | --- |\n"
    for name, declared in rows(kind).items():
        default = defaults[name]
        shown = "" if default in (None, (), MISSING) else f"`{default}`"
        meaning = declared.help.replace("``", "`")
        yield f"| `{name}` | {values(declared)} | {shown} | {meaning} |\n"


def rows(kind: type[Any]) -> dict[str, Declaration]:
    """The options of a group; those that belong to no group are of quantization."""
    if kind is not QuantizationConfig:
        return declarations(kind)
    others = {name for other, _ in GROUPS.values() for name in declarations(other)}
    others |= declarations(CalibratedModel).keys()
    loose = declarations(QuantizationArguments)
    return declarations(kind) | {name: loose[name] for name in loose.keys() - others}


def values(declared: Declaration) -> str:
    """The values of an option in words; a blank where they need its meaning."""
    words = declared.flag
    if words is None:
        return "in Python only"
    if "choices" in words:
        return ", ".join(map(str, words["choices"]))
    return KINDS.get(words.get("type", str), "texts" if "nargs" in words else "")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0
