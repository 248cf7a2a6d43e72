"""The docs' tables of options, from their declarations: docs/reference/options.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from quantglow.api.bisect import BisectArguments
from quantglow.api.compare import CompareArguments
from quantglow.api.compile import CompileArguments
from quantglow.api.diagnose import DiagnoseArguments
from quantglow.api.import_model import ImportArguments
from quantglow.api.load import LoadArguments
from quantglow.api.options import CalibratedModel, CompileOptions, DataOptions
from quantglow.api.pipeline.request import CheckOptions, QuantizationArguments
from quantglow.api.profile import ProfileArguments
from quantglow.quantization.options import QuantizationConfig
from quantglow.support.options import Declaration, declarations

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "options.md"

HEAD = """# Options

Every option is a keyword of Python and, where a command line has such values, a flag of the same
name: `subset_size` is `--subset-size`. `quantize_and_compile` and `compare` take those of the first
four tables; other functions take some, and their own in the last tables. `make options` writes this
page from the declarations, as docstrings and `quantglow help quantize` are made of them.
"""

GROUPS: dict[str, tuple[type[Any], str]] = {
    "Quantize": (QuantizationConfig, "the fields of `QuantizationConfig`, and `model_type`"),
    "Data": (DataOptions, "what the model takes, and is calibrated on"),
    "Check": (CheckOptions, "what is measured, and the accuracy that is kept"),
    "Compile": (CompileOptions, "how programs are compiled and run; also for `compile` and `load`"),
}
"""Groups of options, and what a heading says of them."""

FUNCTIONS: dict[str, type[Any]] = {
    "compile": CompileArguments,
    "load": LoadArguments,
    "import_model": ImportArguments,
    "profile": ProfileArguments,
    "diagnose": DiagnoseArguments,
    "compare": CompareArguments,
    "bisect": BisectArguments,
}
"""Functions that have options of their own."""

NAMELESS = ("model", "calibration_data", "data", "path")
"""Arguments that come first and have no default."""

KINDS = {bool: "True, False", int: "an integer", float: "a number"}


def page() -> str:
    """The text of the page."""
    groups = (
        section(f"{group}: {about}", rows(kind), QuantizationArguments)
        for group, (kind, about) in GROUPS.items()
    )
    functions = (
        section(f"Of `{name}`", own_options(kind), kind) for name, kind in FUNCTIONS.items()
    )
    return "".join([HEAD, *map("".join, groups), *map("".join, functions)])


def section(title: str, options: Mapping[str, Declaration], kind: type[Any]) -> Iterator[str]:
    """A heading and the table of some options of a class."""
    defaults = {each.name: each.default for each in fields(kind)}
    yield f"\n## {title}\n\n"
    yield "| option | values | default | meaning |\n| --- | --- | --- | --- |\n"
    for name, declared in options.items():
        default = defaults[name]
        is_shown = not (default is None or isinstance(default, tuple))
        shown = f"`{default}`" if is_shown else ""
        meaning = declared.help.replace("``", "`")
        yield f"| `{name}` | {values(declared)} | {shown} | {meaning} |\n"


def own_options(kind: type[Any]) -> dict[str, Declaration]:
    """The options of a function that are not those of ``quantize_and_compile``."""
    shared = declarations(QuantizationArguments)
    return {
        name: declared
        for name, declared in declarations(kind).items()
        if declared is not shared.get(name) and name not in NAMELESS
    }


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
