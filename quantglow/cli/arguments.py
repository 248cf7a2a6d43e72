"""Arguments that several commands share, and the objects made of them."""

from __future__ import annotations

import argparse

from quantglow.api.options import CompileOptions
from quantglow.cli.options import option_flags, option_values
from quantglow.cli.steps import AFTER, BEFORE
from quantglow.profiling.samples.images import PREPROCESSING
from quantglow.quantization.options import BESIDE_WEIGHTS, QuantizationConfig
from quantglow.support.errors import OptionError
from quantglow.support.options import declarations

WEIGHTS = ("weights", *BESIDE_WEIGHTS)
QUANTIZATION = tuple(name for name in declarations(QuantizationConfig) if name not in WEIGHTS)
"""Options of int8 weights and activations."""

STEPS = ("before", "after")
CONTROL = ("max_drop", "drop_type", "max_minutes", "validation_data")
DATA = ("subset_size", *CONTROL)
"""Options that mean something where samples are."""

QUANTIZATION_CALL = (*QUANTIZATION, *DATA, "input_shapes", *STEPS)
"""Options of a call of ``quantize_and_compile`` for a program that is not saved."""

MACHINE = tuple(name for name in declarations(CompileOptions) if name != "while_compiling")


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
