"""``quantglow compare``: int8 beside other quantizers, on the user's model and data."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from quantglow.api.compare import CompareArguments, compare
from quantglow.cli.arguments import (
    MACHINE,
    MODEL,
    QUANTIZATION,
    calibration_arguments,
    model_argument,
    open_samples,
    option_flags,
    option_values,
    quantization_arguments,
    steps_arguments,
)
from quantglow.cli.files import check_onnx
from quantglow.support.options import own_flags

OWN = own_flags(CompareArguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    option_flags(parser, MACHINE)
    option_flags(parser, OWN, CompareArguments)
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(options: argparse.Namespace, console: Console) -> None:
    """Quantize with each, and print a table and a verdict."""
    check_onnx(options.model)
    comparison = compare(
        options.model,
        open_samples(options),
        **option_values(options, [*QUANTIZATION, "subset_size", *MODEL, *MACHINE, *OWN]),
    )
    if options.json:
        console.file.write(json.dumps(comparison.to_json()) + "\n")
    else:
        console.print(comparison, highlight=False, crop=False)
