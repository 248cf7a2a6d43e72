"""``quantglow compare``: int8 beside other quantizers, on the user's model and data."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from quantglow.api.compare import SECONDS, compare
from quantglow.cli.arguments import (
    MACHINE,
    QUANTIZATION,
    STEPS,
    calibration_arguments,
    model_argument,
    open_samples,
    option_flags,
    option_values,
    quantization_arguments,
    steps_arguments,
)
from quantglow.cli.files import check_onnx
from quantglow.evaluation.baselines.quantizers import PEER_QUANTIZERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    calibration_arguments(parser, required=True, or_profile=False)
    steps_arguments(parser)
    quantization_arguments(parser)
    option_flags(parser, MACHINE)
    parser.add_argument(
        "--quantizers",
        nargs="+",
        choices=PEER_QUANTIZERS,
        default=list(PEER_QUANTIZERS),
        metavar="NAME",
        help=f"the others (default: all of {', '.join(PEER_QUANTIZERS)})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="about how long to measure each latency (default: %(default)s)",
    )
    parser.add_argument(
        "--peer-minutes",
        type=float,
        default=10.0,
        help="time limit of each of the others (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(options: argparse.Namespace, console: Console) -> None:
    """Quantize with each, and print a table and a verdict."""
    check_onnx(options.model)
    comparison = compare(
        options.model,
        open_samples(options),
        quantizers=options.quantizers,
        seconds=options.seconds,
        peer_minutes=options.peer_minutes,
        **option_values(options, [*QUANTIZATION, "subset_size", "input_shapes", *STEPS, *MACHINE]),
    )
    if options.json:
        console.file.write(json.dumps(comparison.to_json()) + "\n")
    else:
        console.print(comparison, highlight=False, crop=False)
