"""Arguments that several commands share, and the objects made of them.

Flags of the options that ``quantize_and_compile`` declares, and their values for the call.

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

from quantglow.api.options import CompileOptions, ModelOptions
from quantglow.api.pipeline.request import QuantizationArguments
from quantglow.cli.steps import AFTER, BEFORE, list_steps
from quantglow.profiling.samples import ImageFolder
from quantglow.profiling.samples.images import PREPROCESSING
from quantglow.quantization.options import AUTO, BESIDE_WEIGHTS, NONE, QuantizationConfig
from quantglow.support.errors import OptionError
from quantglow.support.options import Declaration, Options, declarations

WEIGHTS = ("weights", *BESIDE_WEIGHTS)
QUANTIZATION = tuple(name for name in declarations(QuantizationConfig) if name not in WEIGHTS)
"""Options of int8 weights and activations."""

STEPS = ("before", "after")
MODEL = tuple(declarations(ModelOptions))
"""Options of everything that reads a model."""

CONTROL = ("max_drop", "drop_type", "max_minutes", "validation_data")
DATA = ("subset_size", *CONTROL)
"""Options that mean something where samples are."""

QUANTIZATION_CALL = (*QUANTIZATION, *DATA, *MODEL)
"""Options of a call of ``quantize_and_compile`` for a program that is not saved."""

MACHINE = tuple(
    name for name in declarations(CompileOptions) if name not in ("while_compiling", "backends")
)


def model_argument(parser: argparse.ArgumentParser, what: str = "ONNX model") -> None:
    parser.add_argument("model", help=f"{what}, or - for stdin")
    option_flags(parser, ["input_shapes"])


def data_arguments(
    parser: argparse.ArgumentParser, required: bool, or_profile: bool = True
) -> None:
    parser.add_argument(
        "--calibration-data",
        required=required,
        metavar="DATA",
        help=".npz with an array for each input (first axis: samples), a folder of .npz or .npy "
        "files, .csv or .parquet with a column for each input, a folder of images with --preprocess"
        + (", or a profile" if or_profile else ""),
    )
    parser.add_argument(
        "--preprocess",
        metavar="HOW",
        help=f"how images become inputs: {', '.join(PREPROCESSING)}, with a side as imagenet:299, "
        "or a function of a Pillow image as module:function",
    )


def calibration_arguments(
    parser: argparse.ArgumentParser, required: bool, or_profile: bool = True
) -> None:
    data_arguments(parser, required, or_profile)
    option_flags(parser, ["subset_size"])


def quantization_arguments(parser: argparse.ArgumentParser) -> None:
    option_flags(parser, QUANTIZATION)


def steps_arguments(parser: argparse.ArgumentParser) -> None:
    for action, words in zip(option_flags(parser, STEPS), (BEFORE, AFTER), strict=True):
        action.help = (
            f"{action.help}: {words}; NAME=STEP STEP … for the input or output NAME of several"
        )


def refuse_without_data(options: argparse.Namespace, *but: str) -> None:
    """Raise ``OptionError`` for flags that matter only where a model is quantized.

    ``but``: those that matter elsewhere, too.
    """
    parser = argparse.ArgumentParser(add_help=False)
    data_arguments(parser, required=False)
    option_flags(parser, [*QUANTIZATION, *DATA])
    usual = vars(parser.parse_args([]))
    changed = [name for name, value in usual.items() if getattr(options, name) != value]
    no = {name: "no-" for name in changed if usual[name] is True}
    if flags := [f"--{no.get(n, '')}{n.replace('_', '-')}" for n in changed if n not in but]:
        raise OptionError(
            f"{', '.join(flags)}: nothing is quantized without --calibration-data. Remedy: give "
            "samples, or leave the flags out."
        )


def trace_argument(parser: argparse.ArgumentParser, what: str, dest: str = "trace") -> None:
    """``--trace``; ``main`` records what the command does where ``dest`` is "trace"."""
    parser.add_argument(
        "--trace",
        dest=dest,
        metavar="FILE",
        help=f"write a timeline of {what}, which https://ui.perfetto.dev shows",
    )


def schedule_argument(parser: argparse.ArgumentParser) -> None:
    """``--schedule``, whose default depends on the target."""
    (action,) = option_flags(parser, ["schedule"], schedule=None)
    action.help = f"{action.help} (default: memory for microcontrollers, else fast)"


def include_code_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--include-code",
        nargs="+",
        default=(),
        metavar="TARGET",
        help="targets whose machine code the file has, too (native, or a level), for --code",
    )


def output_argument(parser: argparse.ArgumentParser, what: str, required: bool = True) -> None:
    parser.add_argument("--output", required=required, metavar="FILE", help=what)


def parse_config(options: argparse.Namespace) -> QuantizationConfig:
    """Configuration from the arguments of ``quantization_arguments``."""
    return QuantizationConfig(**option_values(options, QUANTIZATION))


CODE = re.compile(r"``([^`]+)``")
"""A name in a help text."""


def _flag_name(name: str) -> str:
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
            _flag_name(name),
            default=usual[name],
            help=_flag_help(declared, name, usual[name]),
            **_flag_words(declared[name].flag or {}, usual[name]),
        )
        for name in names
    ]


def _flag_words(words: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """The keywords of argparse: a switch that is on, or may be, has its negative form, too."""
    if words.get("type") is not bool:
        return dict(words)
    return {"action": "store_true" if default is False else argparse.BooleanOptionalAction}


def _flag_help(declared: Mapping[str, Declaration], name: str, default: Any) -> str:
    """The help of an option, with flags for the names of other options, and its default."""

    def named(match: re.Match[str]) -> str:
        other = declared.get(match[1])
        return match[1] if other is None or other.flag is None else _flag_name(match[1])

    text = CODE.sub(named, declared[name].help).replace("%", "%%")
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"{text} (default: %(default)s)" if is_shown else text


def option_values(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from the flags of some options.  Raises ``OptionError``."""
    return {n: READERS[n](n, options) if n in READERS else getattr(options, n) for n in names}


def _techniques(name: str, options: argparse.Namespace) -> str | tuple[str, ...]:
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


def _open_validation(options: argparse.Namespace) -> Any:
    """The validation data; images in subfolders are labeled by these."""
    path = options.validation_data
    if not path or not options.preprocess or not os.path.isdir(path):
        return path
    is_labeled = any(entry.is_dir() for entry in Path(path).iterdir())
    return ImageFolder(path, options.preprocess, labels=is_labeled)


READERS: dict[str, Callable[[str, argparse.Namespace], Any]] = {
    "recovery": _techniques,
    "equalization": _techniques,
    "input_shapes": lambda name, options: parse_shapes(options),
    "validation_data": lambda name, options: _open_validation(options),
    "before": lambda name, options: list_steps(name, getattr(options, name)),
    "after": lambda name, options: list_steps(name, getattr(options, name)),
}
