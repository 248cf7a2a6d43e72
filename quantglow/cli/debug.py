"""``quantglow debug``: the diagnosis of an int8 model's error."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from quantglow.api.diagnose import diagnose
from quantglow.cli.arguments import (
    calibration_arguments,
    model_argument,
    open_samples,
    output_argument,
    parse_config,
    parse_shapes,
    quantization_arguments,
    steps_arguments,
)
from quantglow.cli.files import check_onnx, check_writable
from quantglow.cli.steps import parse_steps
from quantglow.evaluation.accuracy import WORST
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.support.files import writing

PAGES = (".json", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    parser.add_argument(
        "--samples", type=int, default=2, help="batches to measure on (default: %(default)s)"
    )
    parser.add_argument(
        "--worst", type=int, default=WORST, help="layers shown in detail (default: %(default)s)"
    )
    parser.add_argument(
        "--sensitivity",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also what each layer alone does to the outputs (slow for deep networks)",
    )
    parser.add_argument(
        "--measure-speed",
        action=argparse.BooleanOptionalAction,
        help="also the time of each layer on this machine (default: for a page)",
    )
    what = "file to write, besides the text: .json, or .html for a page with the graph"
    output_argument(parser, what, required=False)


def run(options: argparse.Namespace, console: Console) -> None:
    """Print the diagnosis, and write it."""
    check_onnx(options.model)
    if options.output:
        check_writable(options.output, PAGES, (options.model, options.calibration_data))
    diagnosis = diagnose(
        options.model,
        open_samples(options),
        parse_config(options),
        subset_size=options.subset_size,
        samples=options.samples,
        sensitivity=options.sensitivity,
        worst=options.worst,
        input_shapes=parse_shapes(options),
        measure_speed=_wants_speed(options),
        **parse_steps(options),
    )
    console.print(diagnosis, highlight=False, crop=False)
    if options.output:
        write(diagnosis, options.output)


def _wants_speed(options: argparse.Namespace) -> bool:
    """Whether to measure the time of layers: as the flag says, else for a page."""
    if options.measure_speed is not None:
        return bool(options.measure_speed)
    return options.output is not None and Path(options.output).suffix == ".html"


def write(diagnosis: Diagnosis, path: str) -> None:
    """The diagnosis as JSON, or as the page that explains the model."""
    if Path(path).suffix == ".json":
        text = json.dumps(diagnosis.to_json(), indent=1, allow_nan=False)
    else:
        text = diagnosis.to_html()
    with writing(path) as temporary:
        # Names of files may hold bytes that are no text.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
