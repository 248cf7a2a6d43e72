"""The embedded models and their data: ``datasets/`` of the repository, ``_data`` when installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantglow.errors import QuantglowError
from quantglow.foreign_types import Array


@dataclass(frozen=True)
class Example:
    """A model with labelled images and calibration images, preprocessed: float32 [n, ...]."""

    title: str
    model: Path
    input_name: str
    images: Array
    labels: Array
    calibration: Array


def data_folder() -> Path:
    """Folder of the data files.  Raises ``QuantglowError`` if the installation lacks them."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data", package.parent / "datasets"):
        if (folder / "mnist_cnn.onnx").is_file():
            return folder
    raise QuantglowError(
        "the demo's data is missing from this installation. "
        "Remedy: install from a complete checkout with `pip install .`"
    )


def mnist() -> Example:
    """Handwritten digits."""
    folder = data_folder()
    with np.load(folder / "mnist_test.npz", allow_pickle=False) as data:
        images, labels = _digits(data["images"]), data["labels"]
        calibration = _digits(data["calibration_images"])
    model = folder / "mnist_cnn.onnx"
    return Example("MNIST digits, small CNN", model, "image", images, labels, calibration)


def ocr_direction() -> Example:
    """Lines of text, upright or upside down."""
    folder = data_folder()
    with np.load(folder / "ocr_direction.npz", allow_pickle=False) as data:
        images, labels = _lines(data["images"], data["widths"]), data["labels"]
        calibration = _lines(data["calibration_images"], data["calibration_widths"])
    model = folder / "ppocr_cls.onnx"
    return Example("PP-OCR text direction classifier", model, "x", images, labels, calibration)


EXAMPLES: tuple[Callable[[], Example], ...] = (mnist, ocr_direction)


def _digits(images: Array) -> Array:
    """uint8 [N, 28, 28] -> [N, 1, 28, 28] in [0, 1]."""
    return images[:, None].astype(np.float32) / np.float32(255)


def _lines(images: Array, widths: Array) -> Array:
    """uint8 [N, 48, 192] -> [N, 3, 48, 192]: (x / 255 - 0.5) / 0.5, and 0 right of the line."""
    x = (images.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    x = np.where(np.arange(images.shape[2]) < widths[:, None, None], x, np.float32(0))
    return np.repeat(x[:, None], 3, axis=1)
