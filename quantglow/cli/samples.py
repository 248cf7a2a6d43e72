"""Calibration and validation data as flags give them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from quantglow.data import ImageFolder


def samples_of(options: argparse.Namespace) -> Any:
    """The calibration data: a path, or with ``--preprocess`` the images of a folder."""
    given = options.calibration_data
    return ImageFolder(given, options.preprocess) if given and options.preprocess else given


def validation_of(options: argparse.Namespace) -> Any:
    """The validation data; images in subfolders are labelled by these."""
    given = options.validation_data
    if not given or not options.preprocess or not os.path.isdir(given):
        return given
    is_labelled = any(entry.is_dir() for entry in Path(given).iterdir())
    return ImageFolder(given, options.preprocess, labels=is_labelled)
