"""Flags of the options that ``quantize_and_compile`` declares, and their values for the call.

A flag has the name, default, choices and help of its option; ``READERS`` turn the words of a
command line into Python's values where these are not the same.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from quantglow.api.pipeline.request import QuantizationArguments
from quantglow.cli.steps import list_steps
from quantglow.profiling.samples import ImageFolder
from quantglow.quantization.options import AUTO, NONE
from quantglow.support.errors import OptionError
from quantglow.support.options import Declaration, Options, declarations

CODE = re.compile(r"``([^`]+)``")
"""A name in a help text."""


def flag_name(name: str) -> str:
    """The flag of an option."""
    return f"--{name.replace('_', '-')}"


def option_flags(
    parser: argparse.ArgumentParser,
    names: Iterable[str],
    kind: type[Options] = QuantizationArguments,
    **defaults: Any,
) -> list[argparse.Action]:
    """Add the flags of some options of a class; ``defaults``: those that differ from Python's."""
    declared = declarations(kind)
    usual = {each.name: each.default for each in fields(kind)} | defaults  # type: ignore[arg-type]
    return [
        parser.add_argument(
            flag_name(name),
            default=usual[name],
            help=flag_help(declared, name, usual[name]),
            **flag_words(declared[name].flag or {}, usual[name]),
        )
        for name in names
    ]


def flag_words(words: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """The keywords of argparse: a switch that is on, or may be, has its negative form, too."""
    if words.get("type") is not bool:
        return dict(words)
    return {"action": "store_true" if default is False else argparse.BooleanOptionalAction}


def flag_help(declared: Mapping[str, Declaration], name: str, default: Any) -> str:
    """The help of an option, with flags for the names of other options, and its default."""

    def named(match: re.Match[str]) -> str:
        other = declared.get(match[1])
        return match[1] if other is None or other.flag is None else flag_name(match[1])

    text = CODE.sub(named, declared[name].help).replace("%", "%%")
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"{text} (default: %(default)s)" if is_shown else text


def option_values(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from the flags of some options.  Raises ``OptionError``."""
    return {n: READERS[n](n, options) if n in READERS else getattr(options, n) for n in names}


def techniques(name: str, options: argparse.Namespace) -> str | tuple[str, ...]:
    """Techniques as the configuration takes them.  Raises ``OptionError``."""
    words: str | Sequence[str] = getattr(options, name)
    if words == AUTO:
        return AUTO
    if len(words) > 1 and {AUTO, NONE} & set(words):
        raise OptionError(f"{name} is auto, or none, or names of techniques; got {[*words]}")
    return AUTO if AUTO in words else () if NONE in words else tuple(words)


def parse_shapes(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Shapes by name: ``["x:1,3,48,192"]`` becomes ``{"x": (1, 3, 48, 192)}``."""
    shapes = {}
    for text in options.input_shapes or ():
        name, colon, dims = text.rpartition(":")
        words = [dim.strip() for dim in dims.split(",")]
        if not colon or not all(word.isdecimal() and len(word) < 20 for word in words):
            raise OptionError(f"input_shapes takes NAME:D,D,… as x:1,3,48,192; got {text!r}")
        shapes[name] = tuple(map(int, words))
    return shapes


def open_samples(options: argparse.Namespace) -> Any:
    """The calibration data: a path, or with ``--preprocess`` the images of a folder."""
    path = options.calibration_data
    return ImageFolder(path, options.preprocess) if path and options.preprocess else path


def open_validation(options: argparse.Namespace) -> Any:
    """The validation data; images in subfolders are labeled by these."""
    path = options.validation_data
    if not path or not options.preprocess or not os.path.isdir(path):
        return path
    is_labeled = any(entry.is_dir() for entry in Path(path).iterdir())
    return ImageFolder(path, options.preprocess, labels=is_labeled)


READERS: dict[str, Callable[[str, argparse.Namespace], Any]] = {
    "recovery": techniques,
    "equalization": techniques,
    "input_shapes": lambda name, options: parse_shapes(options),
    "validation_data": lambda name, options: open_validation(options),
    "before": lambda name, options: list_steps(name, getattr(options, name)),
    "after": lambda name, options: list_steps(name, getattr(options, name)),
}
