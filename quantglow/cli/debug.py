"""``quantglow debug``: the diagnosis of an int8 model's error."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from quantglow.api.diagnose import DiagnoseArguments, diagnose
from quantglow.cli.arguments import (
    MODEL,
    calibration_arguments,
    model_argument,
    open_samples,
    option_flags,
    option_values,
    output_argument,
    parse_config,
    quantization_arguments,
    steps_arguments,
)
from quantglow.cli.files import check_onnx, check_writable
from quantglow.evaluation.diagnosis import Diagnosis
from quantglow.support.files import writing
from quantglow.support.options import own_flags

PAGES = (".json", ".html")
OWN = own_flags(DiagnoseArguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    actions = option_flags(parser, OWN, DiagnoseArguments, measure_speed=None)
    (speed,) = (action for action in actions if action.dest == "measure_speed")
    speed.help = f"{speed.help} (default: for a page)"
    what = "file to write, besides the text: .json, or .html for a page with the graph"
    output_argument(parser, what, required=False)


def run(options: argparse.Namespace, console: Console) -> None:
    """Print the diagnosis, and write it."""
    check_onnx(options.model)
    if options.output:
        check_writable(options.output, PAGES, (options.model, options.calibration_data))
    values = option_values(options, [*OWN, "subset_size", *MODEL])
    values["measure_speed"] = _wants_speed(options)
    samples, config = open_samples(options), parse_config(options)
    diagnosis = diagnose(options.model, samples, config, **values)
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
