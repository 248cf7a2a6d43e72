"""The command that a report ends with."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from quantglow.cli.steps import words_of
from quantglow.report import Report
from quantglow.report.accuracy.headline import is_close


def next_step(report: Report, options: argparse.Namespace, output: str, good: Sequence[str]) -> str:
    """The command ``good``, or the one that looks into a result that is not close to float."""
    if report.verdict and not is_close(report.verdict) and options.calibration_data:
        page = ["--output", f"{Path(output).stem}.html"]
        return shlex.join(["quantglow", "debug", *source_words(options), *page])
    return shlex.join(good)


def source_words(options: argparse.Namespace) -> list[str]:
    """The model and its calibration data, as words of another command."""
    words = [options.model, "--calibration-data", options.calibration_data]
    words += ["--preprocess", options.preprocess] if options.preprocess else []
    words += ["--input-shapes", *options.input_shapes] if options.input_shapes else []
    return [*words, *words_of(options)]
