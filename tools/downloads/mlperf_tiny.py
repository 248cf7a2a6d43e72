"""The networks of MLPerf Tiny with their trained weights, and inputs for them.

Nothing is downloaded: ``convert_mlperf_tiny`` makes them of a clone of their repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.downloads.model_cache import models_dir

Array = NDArray[Any]

REPOSITORY = "github.com/mlcommons/tiny"
"""Apache-2.0; the files below ``benchmark/training`` are those of its commit 1afd2c9."""


@dataclass(frozen=True)
class Source:
    """A TFLite file of float32: its path below ``benchmark/training``, and its SHA-256.

    ``int8``: the path and SHA-256 of the same network in int8.
    ``inputs``: lowest and highest number of an input, as the int8 file beside it has them.
    ``deviation``: largest difference from LiteRT that is accepted, as a share of the largest
    output.
    """

    path: str
    sha256: str
    shape: tuple[int, ...]
    inputs: tuple[float, float]
    deviation: float
    int8: tuple[str, str]


ROUNDED, QUANTIZED = 1e-4, 0.05
"""Deviations of sums in another order, and of LiteRT's activations in int8 in front of int8
weights: such a file has no float32 weights, its ONNX model has float activations."""

SOURCES = {
    "image_classification": Source(
        "image_classification/trained_models/pretrainedResnet.tflite",
        "b5c0046d6e0328b4956afd6baa29555a29b1f1c65bdd45aaed75b7cd484d9f79",
        (1, 32, 32, 3),
        (0.0, 255.0),
        ROUNDED,
        (
            "image_classification/trained_models/pretrainedResnet_quant.tflite",
            "3c002613d1b2475eb51dd78dfb85a546c8ae658dee71cf6ade43b022fe205415",
        ),
    ),
    "keyword_spotting": Source(
        "keyword_spotting/trained_models/kws_ref_model_float32.tflite",
        "e5004c6f1012246e33fa068d8488325538e0444073cd361f5a7edb40c73f12d2",
        (1, 49, 10, 1),
        (-123.4, 25.7),
        QUANTIZED,
        (
            "keyword_spotting/trained_models/kws_ref_model.tflite",
            "aeea436800704fce17b17292e4412630ad856e9d777c044c64ef748a880bd0ae",
        ),
    ),
    "visual_wake_words": Source(
        "visual_wake_words/trained_models/vww_96_float.tflite",
        "115bbc094d2119561320a21f01b6500a18bea8cc8589282ab007097bec8af38c",
        (1, 96, 96, 3),
        (0.0, 1.0),
        ROUNDED,
        (
            "visual_wake_words/trained_models/vww_96_int8.tflite",
            "597a384c8c2c8a1276f04702f25013b7838f2f814f1ca7c174d295b73e3d6b7b",
        ),
    ),
    "anomaly_detection": Source(
        "anomaly_detection/trained_models/ad01_fp32.tflite",
        "c66636f4d7f8af8b10518e7be750a22c9d8d46ec97326b40b0d94c097e0aad9b",
        (1, 640),
        (-84.9, 14.9),
        ROUNDED,
        (
            "anomaly_detection/trained_models/ad01_int8.tflite",
            "87cf24194ef93d1d9b11a591d805526b98008e351655d29883c825c9c106ba24",
        ),
    ),
}
"""By task: ResNet-8, DS-CNN, MobileNetV1 0.25 of 96 x 96 pixels, an autoencoder."""


def model_file(task: str) -> Path:
    """The path of a converted network.  Raises ``FileNotFoundError`` with what makes it."""
    path = models_dir() / file_name(task)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing.  Remedy: python -m tools.downloads.convert_mlperf_tiny CLONE, "
            f"with a clone of {REPOSITORY}"
        )
    return path


def int8_file(task: str) -> Path:
    """The path of a network's TFLite file in int8.  Raises ``FileNotFoundError``."""
    path = models_dir() / int8_name(task)
    if not path.exists():
        raise FileNotFoundError(
            f"python -m tools.downloads.convert_mlperf_tiny CLONE, with a clone of {REPOSITORY}"
        )
    return path


def int8_name(task: str) -> str:
    """The name of a network in int8 in the model cache."""
    return f"mlperf-tiny-{task}.int8.tflite"


def file_name(task: str) -> str:
    """The name of a converted network in the model cache."""
    return f"mlperf-tiny-{task}.onnx"


def samples(task: str, count: int, seed: int = 0) -> list[Array]:
    """Inputs of a network: noise and smooth images in turns, over the range of real ones."""
    source, rng = SOURCES[task], np.random.default_rng(seed)
    low, high = source.inputs
    recorded = []
    for index in range(count):
        image = rng.standard_normal(source.shape)
        if index % 2:
            axes = range(1, len(source.shape))
            image = np.sum([np.cumsum(image, axis) for axis in axes], axis=0)
        least, most = image.min(), image.max()
        recorded.append(
            np.asarray(low + (image - least) * (high - low) / (most - least), np.float32)
        )
    return recorded
