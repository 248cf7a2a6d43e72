"""Arguments that several commands share, and the objects made of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from quantglow.codegen.llvm.targets import LEVELS
from quantglow.memory.schedule import SCHEDULES
from quantglow.profiling.samples.images import PREPROCESSING
from quantglow.quantization.accuracy_control import DROP_TYPES
from quantglow.quantization.options import (
    ACTIVATIONS,
    COMPILED,
    DEFAULT,
    EFFORTS,
    EQUALIZATIONS,
    GROUP_SIZES,
    METHODS,
    PRESETS,
    PROFILES_WITH,
    RECOVERIES,
    WEIGHTS,
    QuantizationConfig,
)
from quantglow.runtime.programs.answers import ONNXRUNTIME, WAIT
from quantglow.runtime.saved.machine_code import CODE_MODES
from quantglow.support.errors import OptionError

RECORDS = "records"
AUTO, NONE = "auto", "none"
"""All techniques that are worth their time, and no technique."""


def model_argument(parser: argparse.ArgumentParser, what: str = "ONNX model") -> None:
    parser.add_argument("model", help=f"{what}, or - for stdin")
    shapes_argument(parser)


def shapes_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-shapes",
        nargs="+",
        default=[],
        metavar="NAME:D,D,…",
        help="shapes of inputs that an ONNX model leaves free, as x:1,3,48,192",
    )


def calibration_arguments(
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
    parser.add_argument(
        "--subset-size", type=int, default=300, help="batches used at most (default: %(default)s)"
    )


def validation_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--validation-data",
        metavar="DATA",
        help="samples for the check, as --calibration-data; an array or column `labels` (class "
        "indices) beside the inputs, or a subfolder of images for each class, gives the share of "
        "right answers (default: samples held out of the calibration data)",
    )


def quantization_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset", choices=PRESETS, default="mixed", help="performance: zero points are fixed"
    )
    parser.add_argument(
        "--calibrate-method",
        choices=METHODS,
        default="auto",
        help="how ranges are chosen; auto: by the error in the results, given samples",
    )
    parser.add_argument(
        "--percentile",
        type=float,
        default=99.999,
        help="of the values that --calibrate-method percentile keeps (default: %(default)s)",
    )
    parser.add_argument(
        "--per-channel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a scale for each output channel of weights, else one for each tensor",
    )
    parser.add_argument(
        "--effort",
        choices=EFFORTS,
        default=DEFAULT,
        help="fast: no search on samples; best: a longer one",
    )
    parser.add_argument(
        "--profile-with",
        choices=PROFILES_WITH,
        default=COMPILED,
        help="layers are computed on samples by machine code or NumPy (default: %(default)s)",
    )
    parser.add_argument("--ignored-scope", nargs="+", metavar="NODE", help="nodes kept float")
    parser.add_argument("--nodes-to-exclude", nargs="+", metavar="NODE", help="the same")
    parser.add_argument("--op-types-to-quantize", nargs="+", metavar="OP", help="all others: float")
    parser.add_argument(
        "--int16-activations",
        nargs="+",
        default=(),
        metavar="VALUE",
        help="values stored as int16, or auto: those that pay",
    )
    parser.add_argument(
        "--quantize-output",
        action="store_true",
        help="round the results of the last layers to int8, too",
    )
    techniques_argument(parser, "--recovery", RECOVERIES, "weights are rounded")
    techniques_argument(parser, "--equalization", EQUALIZATIONS, "the float network is rewritten")
    parser.add_argument(
        "--seed", type=int, default=0, help="draws the samples that decide (default: %(default)s)"
    )


def techniques_argument(
    parser: argparse.ArgumentParser, name: str, known: Sequence[str], what: str
) -> None:
    """A flag for techniques: "auto", "none", or some by their names."""
    parser.add_argument(
        name,
        nargs="+",
        choices=[AUTO, NONE, *known],
        default=[AUTO],
        metavar="TECHNIQUE",
        help=f"how {what} for accuracy: {', '.join(known)}, or none (default: auto)",
    )


def techniques(name: str, given: Sequence[str]) -> str | tuple[str, ...]:
    """Techniques as the configuration takes them.  Raises ``OptionError``."""
    if len(given) > 1 and {AUTO, NONE} & set(given):
        raise OptionError(f"{name} is auto, or none, or names of techniques; got {[*given]}")
    return AUTO if AUTO in given else () if NONE in given else tuple(given)


def weight_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        help="quantize only the weights of products, in groups; needs no calibration data, and "
        "rounds better with samples",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        default=64,
        help="weights that share a scale (default: %(default)s)",
    )
    parser.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default="dynamic",
        help="beside --weights: rounded to int8 as they come, or float",
    )
    parser.add_argument(
        "--symmetric-weights",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one zero point for all groups, else one for each",
    )


def weight_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments from those of ``weight_arguments``."""
    given = vars(options)
    return {n: given[n] for n in ("weights", "group_size", "activations", "symmetric_weights")}


def control_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-drop",
        type=float,
        help="relative error of the outputs that is allowed, on the samples checked: 0.1 is an "
        "SQNR of 20 dB, 0.01 of 40 dB; values become int16, then operators float, in the order of "
        "their sensitivity for the time it costs, until it holds; unneeded ones return to int8",
    )
    parser.add_argument(
        "--drop-type",
        choices=DROP_TYPES,
        default="absolute",
        help="of --max-drop: absolute, or relative to the float model's figure",
    )
    parser.add_argument(
        "--max-minutes",
        type=float,
        help="ends the search for ranges, scales and rounded weights, and again that of max-drop; "
        "the best found so far is kept",
    )


def refuse_without_data(options: argparse.Namespace, *but: str) -> None:
    """Raise ``OptionError`` for flags that matter only where a model is quantized.

    ``but``: those that matter elsewhere, too.
    """
    parser = argparse.ArgumentParser(add_help=False)
    calibration_arguments(parser, required=False)
    for add in (quantization_arguments, control_arguments, validation_argument):
        add(parser)
    usual = vars(parser.parse_args([]))
    given = [name for name, value in usual.items() if getattr(options, name) != value]
    no = {name: "no-" for name in given if usual[name] is True}
    if flags := [f"--{no.get(n, '')}{n.replace('_', '-')}" for n in given if n not in but]:
        raise OptionError(
            f"{', '.join(flags)}: nothing is quantized without --calibration-data. Remedy: give "
            "samples, or leave the flags out."
        )


def machine_arguments(parser: argparse.ArgumentParser) -> None:
    levels = ", ".join(LEVELS)
    parser.add_argument(
        "--target",
        default="native",
        help=f"native: the best this processor has; or {levels} (plain LLVM IR)",
    )
    parser.add_argument("--num-threads", type=int, help="default: the physical cores")
    schedule_argument(parser, "fast")


def trace_argument(parser: argparse.ArgumentParser, what: str, dest: str = "trace") -> None:
    """``--trace``; ``main`` records what the command does where ``dest`` is "trace"."""
    parser.add_argument(
        "--trace",
        dest=dest,
        metavar="FILE",
        help=f"write a timeline of {what}, which https://ui.perfetto.dev shows",
    )


def schedule_argument(parser: argparse.ArgumentParser, default: str | None) -> None:
    """``--schedule``; a default of None depends on the target."""
    shown = "%(default)s" if default else "memory for microcontrollers, else fast"
    parser.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default=default,
        help="memory: search for the order of execution with the smallest arena "
        f"(default: {shown})",
    )


def tune_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tune",
        choices=[RECORDS],
        help="use the forms and tiles of kernels that `quantglow tune` measured on this machine",
    )


def while_compiling_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--while-compiling",
        choices=[WAIT, ONNXRUNTIME],
        default=WAIT,
        help="what answers at new shapes of a model with free dimensions; onnxruntime: at once, "
        "with the float model, also where the compiled one is int8 (default: %(default)s)",
    )


def include_code_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--include-code",
        nargs="+",
        default=(),
        metavar="TARGET",
        help="targets whose machine code the file has, too (native, or a level), for --code",
    )


def code_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--code",
        choices=CODE_MODES,
        default="ignore",
        help="machine code of a saved model; use: run it where it fits; require: or fail. Trusted "
        "files only (default: %(default)s)",
    )


def output_argument(parser: argparse.ArgumentParser, what: str, required: bool = True) -> None:
    parser.add_argument("--output", required=required, metavar="FILE", help=what)


def config_of(options: argparse.Namespace) -> QuantizationConfig:
    """Configuration from the arguments of ``quantization_arguments``."""
    return QuantizationConfig(**quantization_options(options))


def quantization_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of the configuration."""
    names: tuple[str, ...] = (
        "preset",
        "calibrate_method",
        "per_channel",
        "ignored_scope",
        "effort",
        "profile_with",
    )
    given = vars(options)
    names += ("nodes_to_exclude", "op_types_to_quantize", "int16_activations", "quantize_output")
    names += ("percentile", "seed")
    chosen = {name: techniques(name, given[name]) for name in ("recovery", "equalization")}
    return {**chosen, **{name: given[name] for name in names}}


def shapes_of(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Shapes by name: ``["x:1,3,48,192"]`` becomes ``{"x": (1, 3, 48, 192)}``."""
    shapes = {}
    for text in options.input_shapes:
        name, colon, dims = text.rpartition(":")
        words = [dim.strip() for dim in dims.split(",")]
        if not colon or not all(word.isdecimal() and len(word) < 20 for word in words):
            raise OptionError(f"input_shapes takes NAME:D,D,… as x:1,3,48,192; got {text!r}")
        shapes[name] = tuple(map(int, words))
    return shapes
